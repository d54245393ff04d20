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

package embedded

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"k8s.io/klog/v2"
)

const (
	// maxQuotaBytes bounds the size of the database, as etcd itself does by default.
	maxQuotaBytes = 2 << 30
	// quotaShare is the part of the volume that the database may take, as a
	// divisor. Giving space back writes a second copy, and the log and its
	// preallocated next file take 64 MiB each.
	quotaShare = 4
	// reservedBytes stay free on the volume, so that etcd can begin another log
	// file and write the copy of a small database. Without them it would end the
	// process, and end it again at each start.
	reservedBytes = 128 << 20
	// logFiles is how many finished log files are kept. There are no other members
	// that could need more.
	logFiles = 1
	// spaceInterval is how often the free space of the volume is compared with the
	// reserve, and space is given back in a store that rejects writes.
	spaceInterval = time.Second
	// freeAbove is the part of the quota, as a divisor, that has to be free before
	// writes are accepted again.
	freeAbove = 10
)

// volume reports the size of the file system of the data directory and what is
// free there.
type volume func() (total, free int64, err error)

// volumeOf returns the file system that a directory is on.
func volumeOf(directory string) volume {
	return func() (total, free int64, err error) {
		var stat syscall.Statfs_t
		if err := syscall.Statfs(directory, &stat); err != nil {
			return 0, 0, fmt.Errorf("reading the size of the volume of %s: %w", directory, err)
		}
		return int64(stat.Blocks) * stat.Bsize, int64(stat.Bavail) * stat.Bsize, nil
	}
}

// quotaFor returns the most bytes that the database may have on a volume of a size.
func quotaFor(volumeBytes int64) int64 {
	return min(maxQuotaBytes, volumeBytes/quotaShare)
}

// reserveFor returns what stays free on a volume of a size.
func reserveFor(volumeBytes int64) int64 {
	return min(reservedBytes, volumeBytes/quotaShare)
}

// keepSpace rejects writes before the volume is full, as the process would end
// otherwise, and accepts them again when the database is below its quota and the
// volume has space. Reads, watches and deletions work meanwhile.
func (s *Server) keepSpace(ctx context.Context) error {
	total, free, err := s.volume()
	if err != nil {
		return err
	}
	reserve := reserveFor(total)
	rejecting := s.rejectsWrites()
	switch {
	case !rejecting && free < reserve:
		klog.FromContext(ctx).Error(nil, "The volume of the data directory is almost full, so writes are rejected until it has space: enlarge it, or remove other files from it",
			"freeBytes", free, "neededBytes", reserve)
		return s.setAlarm(ctx, pb.AlarmRequest_ACTIVATE)
	case !rejecting:
		return nil
	}
	if err := s.reclaimSpace(ctx, free-reserve); err != nil {
		return err
	}
	if _, free, err = s.volume(); err != nil {
		return err
	}
	size := s.etcd.Server.Backend().Size()
	if free < 2*reserve || size > s.quota-s.quota/freeAbove {
		s.logFull(ctx, size, free)
		return nil
	}
	klog.FromContext(ctx).Info("The store has space again and accepts writes", "bytes", size, "quotaBytes", s.quota)
	return s.setAlarm(ctx, pb.AlarmRequest_DEACTIVATE)
}

// reclaimSpace compacts the store and defragments its database, when the copy that the latter
// writes fits into the free bytes.
func (s *Server) reclaimSpace(ctx context.Context, free int64) error {
	if err := s.compact(ctx); err != nil {
		return err
	}
	backend := s.etcd.Server.Backend()
	if used := backend.SizeInUse(); used < backend.Size() && used < free {
		if err := backend.Defrag(); err != nil {
			return fmt.Errorf("defragmenting the database: %w", err)
		}
	}
	return nil
}

// logFull logs once for each time that the store rejects writes and no space can be
// given back.
func (s *Server) logFull(ctx context.Context, size, free int64) {
	if s.loggedFull {
		return
	}
	s.loggedFull = true
	klog.FromContext(ctx).Error(nil, "The store is full, so writes are rejected: delete ElastiServices, or enlarge the volume of the data directory and restart",
		"bytes", size, "quotaBytes", s.quota, "freeBytes", free)
}

// rejectsWrites reports whether etcd rejects writes for lack of space.
func (s *Server) rejectsWrites() bool {
	return slices.ContainsFunc(s.etcd.Server.Alarms(), func(alarm *pb.AlarmMember) bool {
		return alarm.GetAlarm() == pb.AlarmType_NOSPACE
	})
}

// setAlarm makes etcd reject writes, or accept them again.
func (s *Server) setAlarm(ctx context.Context, action pb.AlarmRequest_AlarmAction) error {
	ctx, cancel := context.WithTimeout(ctx, compactTimeout)
	defer cancel()
	s.loggedFull = false
	request := &pb.AlarmRequest{MemberID: uint64(s.etcd.Server.MemberID()), Action: action, Alarm: pb.AlarmType_NOSPACE}
	if _, err := s.etcd.Server.Alarm(ctx, request); err != nil {
		return fmt.Errorf("changing whether the store accepts writes: %w", err)
	}
	return nil
}

// compact drops all but the latest state of each object.
func (s *Server) compact(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, compactTimeout)
	defer cancel()
	request := &pb.CompactionRequest{Revision: s.etcd.Server.KV().Rev(), Physical: true}
	if _, err := s.etcd.Server.Compact(ctx, request); err != nil && !errors.Is(err, mvcc.ErrCompacted) {
		return fmt.Errorf("dropping the history: %w", err)
	}
	return nil
}
