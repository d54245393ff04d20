//go:build !linux

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

package socket

import "syscall"

// TryWrite writes the first of pieces once, without blocking, and returns how many
// bytes were written.
func TryWrite(fd uintptr, pieces [][]byte) (int, error) {
	return syscall.Write(int(fd), pieces[0])
}

// reader and writer are not used on this system, where the net package reads and
// writes.
type (
	reader struct{ attempt func(fd uintptr) bool }
	writer struct{ attempt func(fd uintptr) bool }
)

func (reader) try(uintptr) bool { return true }
func (writer) try(uintptr) bool { return true }

// ReadLent implements Conn.
func (c *TCP) ReadLent(lender Lender) (int, error) {
	n, err := c.Read(lender.Lend())
	if n == 0 {
		lender.TakeBack()
	}
	return n, err
}
