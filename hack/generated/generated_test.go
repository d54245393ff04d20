/*
Copyright The elasti-apiserver Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package generated

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const usage = "copies [--check] FOLDER"

// copies generates two files in a folder, one of them in another folder in it.
func copies(folder string) (map[string][]byte, error) {
	return map[string][]byte{
		filepath.Join(folder, "one.md"):       []byte("one\n"),
		filepath.Join(folder, "more", "2.md"): []byte("two\n"),
	}, nil
}

func TestCheckFailsUntilTheFilesAreWritten(t *testing.T) {
	folder := t.TempDir()
	code := func(args ...string) (int, string) {
		var stderr bytes.Buffer
		return run(append(args, folder), &stderr, usage, copies), stderr.String()
	}
	got, stderr := code("--check")
	if got != 1 || !strings.Contains(stderr, "one.md is not current, run 'make generate'\n") || !strings.Contains(stderr, "2.md is not current") {
		t.Errorf("the check of files that do not exist ends with %d: %s", got, stderr)
	}
	if _, err := os.Stat(filepath.Join(folder, "one.md")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the check wrote a file: %v", err)
	}
	for _, args := range [][]string{nil, {"--check"}, nil} {
		if got, stderr := code(args...); got != 0 || stderr != "" {
			t.Errorf("%v ends with %d: %s", args, got, stderr)
		}
	}
	written, err := os.ReadFile(filepath.Join(folder, "more", "2.md"))
	if err != nil || string(written) != "two\n" {
		t.Errorf("the file is %q: %v", written, err)
	}
	if err := os.WriteFile(filepath.Join(folder, "one.md"), []byte("old\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, stderr := code("--check"); got != 1 || strings.Contains(stderr, "2.md") {
		t.Errorf("the check of one old file ends with %d: %s", got, stderr)
	}
}

func TestArgumentsAreOnePath(t *testing.T) {
	failing := func(string) (map[string][]byte, error) { return nil, errors.New("no values") }
	for name, test := range map[string]struct {
		args []string
		code int
		want string
	}{
		"none":         {nil, 2, "usage: " + usage + "\n"},
		"two":          {[]string{"a", "b"}, 2, "usage: " + usage + "\n"},
		"another flag": {[]string{"--write", "a"}, 2, "usage: " + usage + "\n"},
		"help":         {[]string{"--help"}, 0, "usage: " + usage + "\n"},
		"an error":     {[]string{"a"}, 1, "no values\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var stderr bytes.Buffer
			if code := run(test.args, &stderr, usage, failing); code != test.code || !strings.HasSuffix(stderr.String(), test.want) {
				t.Errorf("it ends with %d, want %d: %s", code, test.code, stderr.String())
			}
		})
	}
}

func TestReplaceLeavesTheRestOfAPage(t *testing.T) {
	got, err := Replace([]byte("Before\n<begin>\nold\n<end>\nafter\n"), "<begin>\n", "new\n", "<end>\n")
	if want := "Before\n<begin>\nnew\n<end>\nafter\n"; err != nil || string(got) != want {
		t.Errorf("got %q and %v, want %q", got, err, want)
	}
	for missing, page := range map[string]string{"<begin>": "<end>\n", "<end>": "<begin>\n"} {
		if _, err := Replace([]byte(page), "<begin>\n", "new\n", "<end>\n"); err == nil || !strings.Contains(err.Error(), missing) {
			t.Errorf("got %v, want that %s is missing", err, missing)
		}
	}
}
