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
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// otherFiles is how many files a process with many connections may have open besides: a
// resolver has sockets for its proxy ports and connections to pods.
const otherFiles = 2048

// checkOpenFiles returns an error unless each process may have enough files open for so
// many connections. The Go runtime raises the limit of a process to its hard limit,
// and pods have that of what started the local cluster.
func checkOpenFiles(processes []int, connections int) error {
	for _, process := range processes {
		limits, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(process), "limits"))
		if err != nil {
			return err
		}
		limit, err := openFileLimit(string(limits))
		if err != nil {
			return fmt.Errorf("process %d: %w", process, err)
		}
		if needed := connections + otherFiles; limit < needed {
			return fmt.Errorf("process %d may have %d files open, and %d connections need %d: raise the hard limit of the shell (ulimit -Hn), and start the local cluster anew in it (make cluster-down cluster-up)",
				process, limit, connections, needed)
		}
	}
	return nil
}

// openFileLimit returns how many files a process may have open, of its limits as the
// kernel prints them.
func openFileLimit(limits string) (int, error) {
	for line := range strings.Lines(limits) {
		values, found := strings.CutPrefix(line, "Max open files")
		if !found {
			continue
		}
		// The soft limit comes first.
		fields := strings.Fields(values)
		if len(fields) == 0 {
			break
		}
		if fields[0] == "unlimited" {
			return math.MaxInt, nil
		}
		return strconv.Atoi(fields[0])
	}
	return 0, errors.New("its limits have no number of open files")
}
