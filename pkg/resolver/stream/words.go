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

package stream

import (
	"fmt"
	"net"
	"sync"
	"time"
)

// wordsSize bounds what is read of the first words of either side.
const wordsSize = 1 << 10

// past is a time that every deadline has passed.
var past = time.Unix(1, 0)

// firstWords waits until one of two connections has something to read, and
// returns what was read from each: from one of them, or by chance from both. At
// the end of a connection it returns nothing, and the end is there to be read
// again. It fails when a connection is of no use any more.
func firstWords(client, pod *net.TCPConn) (fromClient, fromPod []byte, err error) {
	var reading sync.WaitGroup
	reading.Go(func() {
		fromPod = readOnce(pod)
		// It fails only when the connection is closed, which ends the reading too.
		_ = client.SetReadDeadline(past)
	})
	fromClient = readOnce(client)
	_ = pod.SetReadDeadline(past)
	reading.Wait()
	for _, conn := range []*net.TCPConn{client, pod} {
		if err := conn.SetReadDeadline(time.Time{}); err != nil {
			return nil, nil, fmt.Errorf("carrying on after the first words: %w", err)
		}
	}
	return fromClient, fromPod, nil
}

// readOnce returns what one read yields. How it fails shows again when the
// connection is read next.
func readOnce(conn *net.TCPConn) []byte {
	words := make([]byte, wordsSize)
	n, _ := conn.Read(words)
	return words[:n]
}
