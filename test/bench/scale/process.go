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

package scale

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// clockTicks is how many clock ticks a second /proc counts in. It is the same
// on all architectures that Go knows.
const clockTicks = 100

// Memory is the resident memory of a process, in bytes.
type Memory struct {
	// Resident is all of it, Anonymous what the process allocated, and Files
	// what it mapped of files.
	Resident, Anonymous, Files int64
}

// MemoryOf returns the resident memory of a process.
func MemoryOf(pid int) (Memory, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return Memory{}, err
	}
	var memory Memory
	for line := range strings.Lines(string(content)) {
		name, value, _ := strings.Cut(line, ":")
		destination, known := map[string]*int64{"VmRSS": &memory.Resident, "RssAnon": &memory.Anonymous, "RssFile": &memory.Files}[name]
		if !known {
			continue
		}
		kibibytes, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		if err != nil {
			return Memory{}, fmt.Errorf("reading %s of process %d: %w", name, pid, err)
		}
		*destination = kibibytes << 10
	}
	return memory, nil
}

// processorTime is the processor time that a process has used.
func processorTime(pid int) (time.Duration, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The name in parentheses may have spaces. User and system time are the
	// 14th and 15th field, the 12th and 13th after the name.
	fields := strings.Fields(string(content[bytes.LastIndexByte(content, ')')+1:]))
	if len(fields) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat has only %d fields after the name", pid, len(fields))
	}
	var ticks int64
	for _, field := range fields[11:13] {
		value, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("reading the processor time of process %d: %w", pid, err)
		}
		ticks += value
	}
	return time.Duration(ticks) * time.Second / clockTicks, nil
}
