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
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// userID is the user and group that the binary runs as, the one which
// distroless images call nonroot.
const userID = 65532

// Media types of the OCI image specification.
const (
	mediaTypeManifest = "application/vnd.oci.image.manifest.v1+json"
	mediaTypeConfig   = "application/vnd.oci.image.config.v1+json"
	mediaTypeLayer    = "application/vnd.oci.image.layer.v1.tar"
)

// epoch is the time of everything in an image, so that time leaves no trace.
var epoch = time.Unix(0, 0).UTC()

// imageOptions says what an image holds.
type imageOptions struct {
	// Command is the name of the binary in the root of the image.
	Command string
	// Binary is a static executable.
	Binary []byte
	// Architecture is the one Binary was built for, as Go names it.
	Architecture string
	// Labels are the labels of the image.
	Labels map[string]string
}

// image is an image of one layer.
type image struct {
	manifest, config, layer blob
}

// blob is content that is named by its digest.
type blob struct {
	MediaType string `json:"mediaType"`
	Digest    string `json:"digest"`
	Size      int    `json:"size"`

	content []byte
}

func newBlob(mediaType string, content []byte) blob {
	sum := sha256.Sum256(content)
	return blob{
		MediaType: mediaType,
		Digest:    "sha256:" + hex.EncodeToString(sum[:]),
		Size:      len(content),
		content:   content,
	}
}

func (b blob) hexDigest() string { return b.Digest[len("sha256:"):] }

// path is where an OCI image layout keeps the blob.
func (b blob) path() string { return "blobs/sha256/" + b.hexDigest() }

func newImage(options imageOptions) (*image, error) {
	layerContent, err := newLayer(options)
	if err != nil {
		return nil, err
	}
	// The layer is not compressed: the archive is read from the same machine's
	// disk, and a registry client compresses what it pushes.
	layer := newBlob(mediaTypeLayer, layerContent)

	configContent, err := json.Marshal(map[string]any{
		"created":      epoch,
		"architecture": options.Architecture,
		"os":           "linux",
		"config": map[string]any{
			"User":       fmt.Sprintf("%d:%d", userID, userID),
			"Entrypoint": []string{"/" + options.Command},
			"WorkingDir": "/",
			"Env":        []string{"PATH=/"},
			"Labels":     options.Labels,
		},
		"rootfs":  map[string]any{"type": "layers", "diff_ids": []string{layer.Digest}},
		"history": []any{map[string]any{"created": epoch, "created_by": options.Command}},
	})
	if err != nil {
		return nil, err
	}
	config := newBlob(mediaTypeConfig, configContent)

	manifestContent, err := json.Marshal(map[string]any{
		"schemaVersion": 2,
		"mediaType":     mediaTypeManifest,
		"config":        config,
		"layers":        []blob{layer},
	})
	if err != nil {
		return nil, err
	}
	return &image{
		manifest: newBlob(mediaTypeManifest, manifestContent),
		config:   config,
		layer:    layer,
	}, nil
}

// newLayer returns the root file system: the binary, and the user that runs it.
func newLayer(options imageOptions) ([]byte, error) {
	var layer bytes.Buffer
	writer := tar.NewWriter(&layer)
	passwd := fmt.Sprintf("root:x:0:0:root:/:/sbin/nologin\nnonroot:x:%d:%d:nonroot:/:/sbin/nologin\n", userID, userID)
	group := fmt.Sprintf("root:x:0:\nnonroot:x:%d:\n", userID)
	for _, add := range []func() error{
		func() error { return addDirectory(writer, "etc/", 0o755) },
		func() error { return addFile(writer, "etc/group", 0o644, []byte(group)) },
		func() error { return addFile(writer, "etc/passwd", 0o644, []byte(passwd)) },
		func() error { return addFile(writer, options.Command, 0o755, options.Binary) },
		writer.Close,
	} {
		if err := add(); err != nil {
			return nil, err
		}
	}
	return layer.Bytes(), nil
}

// writeArchive writes the image, under each of the names, as an OCI image
// layout that is a docker archive at the same time: index.json describes the
// blobs to the one kind of reader and manifest.json to the other.
func writeArchive(destination io.Writer, built *image, names []string) error {
	index, err := newIndex(built, names)
	if err != nil {
		return err
	}
	dockerManifest, err := json.Marshal([]any{map[string]any{
		"Config":   built.config.path(),
		"RepoTags": names,
		"Layers":   []string{built.layer.path()},
	}})
	if err != nil {
		return err
	}

	writer := tar.NewWriter(destination)
	for _, file := range []struct {
		name    string
		content []byte
	}{
		{"oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)},
		{"index.json", index},
		{"manifest.json", dockerManifest},
		{built.manifest.path(), built.manifest.content},
		{built.config.path(), built.config.content},
		{built.layer.path(), built.layer.content},
	} {
		if err := addFile(writer, file.name, 0o644, file.content); err != nil {
			return err
		}
	}
	return writer.Close()
}

// newIndex returns the index.json that gives the image its names.
func newIndex(built *image, names []string) ([]byte, error) {
	type descriptor struct {
		blob
		Annotations map[string]string `json:"annotations"`
	}
	descriptors := make([]descriptor, 0, len(names))
	for _, name := range names {
		descriptors = append(descriptors, descriptor{
			blob: built.manifest,
			Annotations: map[string]string{
				// The first is what containerd reads, the second what others do.
				"io.containerd.image.name":          name,
				"org.opencontainers.image.ref.name": name,
			},
		})
	}
	return json.Marshal(map[string]any{
		"schemaVersion": 2,
		"mediaType":     "application/vnd.oci.image.index.v1+json",
		"manifests":     descriptors,
	})
}

func addDirectory(writer *tar.Writer, name string, mode int64) error {
	return writer.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: mode, ModTime: epoch})
}

func addFile(writer *tar.Writer, name string, mode int64, content []byte) error {
	if err := writer.WriteHeader(&tar.Header{
		Typeflag: tar.TypeReg,
		Name:     name,
		Mode:     mode,
		Size:     int64(len(content)),
		ModTime:  epoch,
	}); err != nil {
		return err
	}
	_, err := writer.Write(content)
	return err
}
