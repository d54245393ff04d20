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

import (
	"sync"

	"golang.org/x/sys/unix"
)

const (
	// maxPipes bounds the pipes of the process, each of which has two file descriptors.
	// All of them are in use only when that many readers are slow. A process that may
	// have few files has fewer pipes: no more than one for each filesPerPipe files.
	maxPipes     = 256
	filesPerPipe = 16
	// pipeSize is the capacity of a pipe.
	pipeSize = 256 << 10
	// copySize is the size of a buffer where no pipe is used.
	copySize = 32 << 10
)

var copyBuffers = sync.Pool{New: func() any { return new([copySize]byte) }}

// pipe is a pipe of the kernel.
type pipe struct{ read, write int }

// pipes are the pipes of the process: the unused ones, and room for more.
var pipes = newPipePool()

func newPipePool() *pipePool {
	n := maxPipes
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err == nil {
		n = int(min(maxPipes, files.Cur/filesPerPipe))
	}
	return &pipePool{unused: make(chan *pipe, n), room: make(chan struct{}, n)}
}

// pipePool keeps pipes. It is safe for concurrent use.
type pipePool struct {
	unused chan *pipe
	// room has a value for each pipe that there is.
	room chan struct{}
}

// get returns an empty pipe, or nil when there are too many.
func (p *pipePool) get() *pipe {
	select {
	case unused := <-p.unused:
		return unused
	default:
	}
	select {
	case p.room <- struct{}{}:
	default:
		return nil
	}
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		<-p.room
		return nil
	}
	// A smaller capacity is sufficient.
	_, _ = unix.FcntlInt(uintptr(ends[0]), unix.F_SETPIPE_SZ, pipeSize)
	return &pipe{read: ends[0], write: ends[1]}
}

// put returns an empty pipe to the pool.
func (p *pipePool) put(unused *pipe) {
	// The channel has room for all pipes.
	p.unused <- unused
}

// close closes a pipe that is not empty.
func (p *pipe) close() {
	unix.Close(p.read)
	unix.Close(p.write)
	<-pipes.room
}
