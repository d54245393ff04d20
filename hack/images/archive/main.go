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

// Command archive packs one static binary into a container image that holds
// nothing else, and writes the image to a file which docker load,
// ctr images import and kind load image-archive take. The same input gives the
// same bytes, on any machine and at any time.
//
// It knows nothing of registries. Begin with newImage.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// contentTagLength is how many hex digits of the image's digest make a tag.
const contentTagLength = 12

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "archive:", err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	flags := flag.NewFlagSet("archive", flag.ExitOnError)
	labels := labelFlag{}
	binary := flags.String("binary", "", "static binary that the image runs (required)")
	name := flags.String("name", "", "name of the image without a tag, such as docker.io/library/example (required)")
	tag := flags.String("tag", "latest", "tag of the image; a second tag is made of the image's digest")
	architecture := flags.String("architecture", runtime.GOARCH, "architecture that the binary was built for, as Go names it")
	output := flags.String("output", "", "file to write the archive to (required)")
	flags.Var(labels, "label", "label of the image as key=value; may be repeated")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	for flagName, value := range map[string]string{"binary": *binary, "name": *name, "tag": *tag, "output": *output} {
		if value == "" {
			return fmt.Errorf("--%s is required", flagName)
		}
	}

	content, err := os.ReadFile(*binary)
	if err != nil {
		return fmt.Errorf("reading the binary: %w", err)
	}
	built, err := newImage(imageOptions{
		Command:      filepath.Base(*binary),
		Binary:       content,
		Architecture: *architecture,
		Labels:       labels,
	})
	if err != nil {
		return fmt.Errorf("building the image of %s: %w", *binary, err)
	}
	contentTag := built.manifest.hexDigest()[:contentTagLength]
	names := []string{*name + ":" + *tag, *name + ":" + contentTag}
	if err := writeFile(*output, built, names); err != nil {
		return fmt.Errorf("writing %s: %w", *output, err)
	}
	fmt.Println(names[1])
	return nil
}

// writeFile replaces path by the archive of the image, or leaves it as it was.
func writeFile(path string, built *image, names []string) error {
	file, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	err = errors.Join(writeArchive(file, built, names), file.Chmod(0o644), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	return nil
}

// labelFlag is a repeatable flag of key=value pairs.
type labelFlag map[string]string

func (l labelFlag) String() string { return "" }

func (l labelFlag) Set(value string) error {
	key, value, found := strings.Cut(value, "=")
	if !found || key == "" {
		return fmt.Errorf("a label is key=value")
	}
	l[key] = value
	return nil
}
