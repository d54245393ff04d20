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

// Package generated is what the programs that write files of the repository have in common:
// the command line, the comparison with what is there, and tables in pages.
//
// It knows nothing of what is written. Begin with Main.
package generated

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Main is the main function of a program with one argument, a path. generate returns, for
// that path, the content of each file by its path. Main writes these files; with --check it
// writes nothing, and fails when a file is not current. usage is the line that shows the
// arguments.
func Main(usage string, generate func(path string) (map[string][]byte, error)) {
	os.Exit(run(os.Args[1:], os.Stderr, usage, generate))
}

// run returns the exit code: 1 for an error, 2 for wrong arguments.
func run(args []string, stderr io.Writer, usage string, generate func(path string) (map[string][]byte, error)) int {
	flags := flag.NewFlagSet("", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() { fmt.Fprintln(stderr, "usage: "+usage) }
	check := flags.Bool("check", false, "")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	case flags.NArg() != 1:
		flags.Usage()
		return 2
	}
	files, err := generate(flags.Arg(0))
	if err == nil {
		err = update(files, *check)
	}
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}

// update writes the files that are not current, or returns an error about each of them.
func update(files map[string][]byte, check bool) error {
	var stale []error
	for _, path := range slices.Sorted(maps.Keys(files)) {
		previous, err := os.ReadFile(path)
		switch {
		case err == nil && bytes.Equal(previous, files[path]):
		case check:
			stale = append(stale, fmt.Errorf("%s is not current, run 'make generate'", path))
		default:
			if err := write(path, files[path]); err != nil {
				return err
			}
		}
	}
	return errors.Join(stale...)
}

func write(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("making the folder of %s: %w", path, err)
	}
	if err := os.WriteFile(path, content, 0o644); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}

// Replace returns a page with the table in place of what is between two lines, begin and
// end.
func Replace(page []byte, begin, table, end string) ([]byte, error) {
	before, rest, found := bytes.Cut(page, []byte(begin))
	if !found {
		return nil, fmt.Errorf("the line %q is missing", strings.TrimSpace(begin))
	}
	_, after, found := bytes.Cut(rest, []byte(end))
	if !found {
		return nil, fmt.Errorf("the line %q is missing", strings.TrimSpace(end))
	}
	return bytes.Join([][]byte{before, []byte(begin), []byte(table), []byte(end), after}, nil), nil
}
