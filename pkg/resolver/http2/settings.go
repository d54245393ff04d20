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

package http2

import (
	"encoding/binary"

	"golang.org/x/net/http2"
)

// maxUnacknowledged bounds the SETTINGS of one side that the other has not
// acknowledged.
const maxUnacknowledged = 256

// maxWaitingSettings bounds the bytes of those that wait for their turn, which no account
// has. Clients send a few dozen, once.
const maxWaitingSettings = 4 << 10

// clientSettings are those that a client has sent by the time that a pod is
// chosen. Afterwards the frames themselves are passed on.
type clientSettings struct {
	// values are the latest, in the order in which they came first.
	values []http2.Setting
	// initialWindow is SETTINGS_INITIAL_WINDOW_SIZE.
	initialWindow uint32
	// tableSize is SETTINGS_HEADER_TABLE_SIZE, and smallestTable the smallest that
	// it was: an encoder has to report both.
	tableSize, smallestTable uint32
}

func newClientSettings() clientSettings {
	return clientSettings{initialWindow: initialWindow, tableSize: initialTableSize, smallestTable: initialTableSize}
}

// set records a setting of the client.
func (s *clientSettings) set(setting http2.Setting) {
	switch setting.ID {
	case http2.SettingInitialWindowSize:
		s.initialWindow = setting.Val
	case http2.SettingHeaderTableSize:
		s.tableSize = min(setting.Val, initialTableSize)
		s.smallestTable = min(s.smallestTable, s.tableSize)
	}
	setting, ok := forPod(setting)
	if !ok {
		return
	}
	for i := range s.values {
		if s.values[i].ID == setting.ID {
			s.values[i] = setting
			return
		}
	}
	if len(s.values) < maxUnacknowledged {
		s.values = append(s.values, setting)
	}
}

// replay returns the SETTINGS frame that tells a pod what the client has sent. It
// has all of it, as some settings may not change afterwards. A table that was
// lowered and raised again stays low: the pod would have to tell the client of
// both, and a smaller table than the client has is always allowed.
func (s *clientSettings) replay() []byte {
	settings := []http2.Setting{{ID: http2.SettingEnablePush}}
	for _, setting := range s.values {
		if setting.ID == http2.SettingHeaderTableSize {
			setting.Val = s.smallestTable
		}
		settings = append(settings, setting)
	}
	return appendSettings(nil, settings...)
}

// forPod returns what a pod is sent of a setting of the client, and false when it
// is not sent it. Promises of pushes would be responses to requests that nothing
// here knows of. Tables larger than at the beginning are not offered, as the
// header blocks of the pod are followed here, nor are frames larger than those
// that a read buffer is sure to hold.
func forPod(setting http2.Setting) (http2.Setting, bool) {
	switch setting.ID {
	case http2.SettingEnablePush, http2.SettingMaxFrameSize:
		return setting, false
	case http2.SettingHeaderTableSize:
		setting.Val = min(setting.Val, initialTableSize)
	}
	return setting, true
}

// forClient returns what a client is sent of a setting of the pod, and false when
// it is not sent it. Its header blocks are decoded here.
func (c *conn) forClient(setting http2.Setting) (http2.Setting, bool) {
	switch setting.ID {
	case http2.SettingHeaderTableSize, http2.SettingMaxFrameSize:
		return setting, false
	case http2.SettingNoRFC7540Priorities:
		// The first SETTINGS of a connection decides on it (RFC 9218, section 2.1),
		// and that was sent before there was a pod: clients end the connection
		// when a later one differs.
		return setting, false
	case http2.SettingMaxConcurrentStreams:
		setting.Val = min(setting.Val, c.maxStreams)
	case http2.SettingMaxHeaderListSize:
		setting.Val = min(setting.Val, uint32(c.server.options.MaxHeaderBytes))
	}
	return setting, true
}

// parseSettings calls set for each setting of a frame that is not an ACK.
func parseSettings(f *frame, set func(http2.Setting)) error {
	if f.stream != 0 {
		return connError{http2.ErrCodeProtocol, "SETTINGS on a stream"}
	}
	if len(f.payload)%6 != 0 {
		return connError{http2.ErrCodeFrameSize, "SETTINGS whose length is no multiple of six"}
	}
	for p := f.payload; len(p) > 0; p = p[6:] {
		setting := http2.Setting{ID: http2.SettingID(binary.BigEndian.Uint16(p)), Val: binary.BigEndian.Uint32(p[2:])}
		switch {
		case setting.ID == http2.SettingInitialWindowSize && setting.Val > maxWindow:
			return connError{http2.ErrCodeFlowControl, "SETTINGS_INITIAL_WINDOW_SIZE is too large"}
		case setting.ID == http2.SettingEnablePush && setting.Val > 1,
			setting.ID == http2.SettingEnableConnectProtocol && setting.Val > 1,
			setting.ID == http2.SettingMaxFrameSize && (setting.Val < maxFrame || setting.Val > 1<<24-1):
			return connError{http2.ErrCodeProtocol, "a setting has a value that it cannot have"}
		}
		set(setting)
	}
	return nil
}

// acks accounts for the SETTINGS that wait for an ACK. The reading goroutines
// share it: it must be used with mu of the connection held.
type acks struct {
	// client has an entry for each SETTINGS frame sent to the client: true for
	// those of the pod, whose ACK is passed on.
	client []bool
	// podTables are the table sizes of the pod whose SETTINGS the client has not
	// acknowledged, one for each of them; -1 without one.
	podTables []int64
	// toPod are SETTINGS for the pod. The first was sent and waits for its ACK, the
	// others for their turn: there are servers that acknowledge two at once when
	// they come together.
	toPod []settingsForPod
}

// settingsForPod is a SETTINGS frame for the pod.
type settingsForPod struct {
	// frame is nil once it was sent.
	frame []byte
	// replayed is true for one of which the client was sent the acknowledgement.
	replayed bool
	// table is the size of the client's table in it; -1 without one.
	table int64
}

// firstSettings returns the SETTINGS frame that a connection to a pod begins with.
func (c *conn) firstSettings() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.acks.toPod = append(c.acks.toPod[:0], settingsForPod{replayed: true, table: -1})
	return c.settings.replay()
}

// passSettings sends SETTINGS of the client to the pod when it has acknowledged
// those before them.
func (c *conn) passSettings(next settingsForPod) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	waiting := 0
	for _, before := range c.acks.toPod {
		waiting += len(before.frame)
	}
	atOnce := len(c.acks.toPod) == 0
	if len(c.acks.toPod) > maxUnacknowledged || !atOnce && waiting+len(next.frame) > maxWaitingSettings {
		return connError{http2.ErrCodeEnhanceYourCalm, "too many SETTINGS that were not acknowledged"}
	}
	if atOnce {
		c.toPod.add(next.frame)
		next.frame = nil
	}
	c.acks.toPod = append(c.acks.toPod, next)
	return nil
}

// passNextSettings sends the pod the SETTINGS whose turn has come.
func (c *conn) passNextSettings() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pod != nil && len(c.acks.toPod) > 0 {
		c.toPod.add(c.acks.toPod[0].frame)
		c.acks.toPod[0].frame = nil
	}
}

// settingsWait reports whether SETTINGS of the client wait for their turn.
func (c *conn) settingsWait() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.acks.toPod) > 1
}

// podAcked returns whether an ACK of the pod is passed on to the client, and the size of
// the pod's table that the ACK puts in force, -1 without one.
func (c *conn) podAcked() (passedOn bool, tableSize int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.acks.toPod) == 0 {
		return false, -1
	}
	acked := c.acks.toPod[0]
	if c.acks.toPod = c.acks.toPod[1:]; len(c.acks.toPod) > 0 {
		c.events.acked()
	} else {
		c.acks.toPod = nil
	}
	return !acked.replayed, acked.table
}

// appendInteger appends an integer as RFC 7541 §5.1 has it, in the lowest n bits
// of first and what follows.
func appendInteger(out []byte, first byte, n int, value uint64) []byte {
	limit := uint64(1)<<n - 1
	if value < limit {
		return append(out, first|byte(value))
	}
	out = append(out, first|byte(limit))
	for value -= limit; value >= 0x80; value >>= 7 {
		out = append(out, byte(value)|0x80)
	}
	return append(out, byte(value))
}
