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

package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
)

func TestArchiveIsReadableInBothFormats(t *testing.T) {
	built, err := newImage(imageOptions{
		Command:      "example",
		Binary:       []byte("#!example"),
		Architecture: "amd64",
		Labels:       map[string]string{"org.opencontainers.image.title": "example"},
	})
	if err != nil {
		t.Fatal(err)
	}
	names := []string{"docker.io/library/example:v1", "docker.io/library/example:v2"}
	var archive bytes.Buffer
	if err := writeArchive(&archive, built, names); err != nil {
		t.Fatal(err)
	}
	files := readTar(t, archive.Bytes())

	var docker []struct {
		Config           string
		RepoTags, Layers []string
	}
	decode(t, files["manifest.json"], &docker)
	if len(docker) != 1 || len(docker[0].RepoTags) != 2 || len(docker[0].Layers) != 1 {
		t.Fatalf("manifest.json describes %+v, want one image with two tags and one layer", docker)
	}

	var index struct {
		Manifests []struct {
			blob
			Annotations map[string]string
		}
	}
	decode(t, files["index.json"], &index)
	if len(index.Manifests) != len(names) {
		t.Fatalf("index.json describes %+v, want one entry for each name", index)
	}
	for i, described := range index.Manifests {
		if got := described.Annotations["io.containerd.image.name"]; got != names[i] {
			t.Errorf("name of manifest %d in index.json is %q, want %q", i, got, names[i])
		}
	}

	var manifest struct {
		Config blob
		Layers []blob
	}
	decode(t, verified(t, files, index.Manifests[0].blob), &manifest)
	if manifest.Config.path() != docker[0].Config || manifest.Layers[0].path() != docker[0].Layers[0] {
		t.Errorf("manifest.json names %+v, the manifest %+v", docker[0], manifest)
	}

	var config struct {
		OS, Architecture string
		Config           struct {
			User       string
			Entrypoint []string
			Labels     map[string]string
		}
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}
	decode(t, verified(t, files, manifest.Config), &config)
	if config.Config.User != "65532:65532" || config.Config.Entrypoint[0] != "/example" {
		t.Errorf("the image runs %v as %s, want /example as 65532:65532", config.Config.Entrypoint, config.Config.User)
	}
	if config.RootFS.DiffIDs[0] != manifest.Layers[0].Digest {
		t.Errorf("diff ID is %s, want the digest of the uncompressed layer %s", config.RootFS.DiffIDs[0], manifest.Layers[0].Digest)
	}

	root := readTar(t, verified(t, files, manifest.Layers[0]))
	if got := string(root["example"]); got != "#!example" {
		t.Errorf("the binary in the image is %q", got)
	}
	if !bytes.Contains(root["etc/passwd"], []byte("nonroot:x:65532:65532:")) {
		t.Errorf("/etc/passwd does not know the user: %s", root["etc/passwd"])
	}
}

func TestSameInputGivesSameArchiveAndTag(t *testing.T) {
	directory := t.TempDir()
	binary := filepath.Join(directory, "example")
	if err := os.WriteFile(binary, []byte("#!example"), 0o755); err != nil {
		t.Fatal(err)
	}
	var archives [2][]byte
	for i := range archives {
		output := filepath.Join(directory, "example.tar")
		if err := run([]string{
			"--binary", binary, "--name", "example", "--output", output,
			"--label", "a=1", "--label", "b=2", "--label", "c=3",
		}); err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(output)
		if err != nil {
			t.Fatal(err)
		}
		archives[i] = content
	}
	if !bytes.Equal(archives[0], archives[1]) {
		t.Error("two archives of the same binary differ")
	}
}

func readTar(t *testing.T, content []byte) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	reader := tar.NewReader(bytes.NewReader(content))
	for {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[header.Name], err = io.ReadAll(reader); err != nil {
			t.Fatal(err)
		}
	}
}

// verified returns the file that a descriptor describes.
func verified(t *testing.T, files map[string][]byte, described blob) []byte {
	t.Helper()
	content := files[described.path()]
	if actual := newBlob(described.MediaType, content); actual.Digest != described.Digest || actual.Size != described.Size {
		t.Fatalf("%s has %d bytes and digest %s, described are %d bytes", described.path(), actual.Size, actual.Digest, described.Size)
	}
	return content
}

func decode(t *testing.T, content []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(content, into); err != nil {
		t.Fatalf("%v in %s", err, content)
	}
}
