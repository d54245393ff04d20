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

// Package localfault distinguishes the faults of a resolver's own machine, such as a
// lack of file descriptors, from those of the pods that it connects to.
//
// It does not know what a connection is for. Begin with Classify.
package localfault

import (
	"errors"
	"fmt"
	"syscall"
)

// Kind is what is missing.
type Kind string

const (
	// Descriptors: the process or the machine has no file descriptor left.
	Descriptors Kind = "descriptors"
	// Ports: no local port, or no local address, is left for a connection.
	Ports Kind = "ports"
	// Memory: the kernel has no memory for a socket.
	Memory Kind = "memory"
)

// Kinds returns every Kind.
func Kinds() []Kind { return []Kind{Descriptors, Ports, Memory} }

// Error is an error that a fault of the machine caused. It says nothing about
// the other end of a connection.
type Error struct {
	Kind Kind
	Err  error
}

// Error implements error.
func (e *Error) Error() string {
	return fmt.Sprintf("the resolver has no %s left: %v", e.Kind.noun(), e.Err)
}

// Unwrap returns the error of the system call.
func (e *Error) Unwrap() error { return e.Err }

func (k Kind) noun() string {
	switch k {
	case Descriptors:
		return "file descriptors"
	case Ports:
		return "local ports"
	default:
		return "memory for sockets"
	}
}

// Classify returns err as an *Error when a fault of the machine caused it, and
// as it is otherwise.
func Classify(err error) error {
	var already *Error
	if err == nil || errors.As(err, &already) {
		return err
	}
	for _, known := range []struct {
		number syscall.Errno
		kind   Kind
	}{
		{syscall.EMFILE, Descriptors}, {syscall.ENFILE, Descriptors},
		{syscall.EADDRNOTAVAIL, Ports},
		{syscall.ENOBUFS, Memory}, {syscall.ENOMEM, Memory},
	} {
		if errors.Is(err, known.number) {
			return &Error{Kind: known.kind, Err: err}
		}
	}
	return err
}

// Of returns the Error in err's tree, or nil.
func Of(err error) *Error {
	var found *Error
	if errors.As(err, &found) {
		return found
	}
	return nil
}
