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

// Package embedded runs an etcd inside this process, for where there is no other
// store: development, the edge, a first try. Only this process can reach it: it
// listens on unix sockets in a folder that only the user of the process may enter.
// Every write is on disk before it returns.
//
// It knows nothing of what is stored. Begin with Start.
package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/storage/datadir"
	"go.uber.org/zap"
	"k8s.io/klog/v2"
)

const (
	// memberName is the name of the only member of the etcd cluster.
	memberName = "elasti"
	// maxSocketPathBytes is what fits into the sockaddr_un of Linux, with its
	// terminating zero.
	maxSocketPathBytes = 107
	// lockRetryInterval is how often a store that waits for its predecessor retries.
	lockRetryInterval = 50 * time.Millisecond
	// snapshotAfter is after how many writes the log is truncated. The log is in
	// memory too: by default etcd keeps up to 15,000 writes, most of them for
	// members that are behind, and there are no other members.
	snapshotAfter  = 1000
	catchUpEntries = 100
	// startTimeout bounds replaying the log after a crash.
	startTimeout = 2 * time.Minute
)

// Options says where the store is.
type Options struct {
	// DataDir is the folder that holds everything. It is created when it does
	// not exist. Required. One process at a time can use it.
	DataDir string
	// LockTimeout is how long Start waits for another process to end its use
	// of the folder, as the predecessor does in an upgrade. Zero means not at
	// all.
	LockTimeout time.Duration
	// volume is where the data directory is. Defaults to its file system.
	volume volume
	// quota bounds the size of the database in bytes. Defaults to a part of the
	// volume.
	quota int64
}

// Server is a running etcd. Make it with Start and end it with Close.
type Server struct {
	etcd  *embed.Etcd
	fatal <-chan error
	// serving is true while errors of etcd are worth a log entry.
	serving  *atomic.Bool
	lock     *fileutil.LockedFile
	endpoint string
	volume   volume
	// quota is the size in bytes from which the database rejects writes.
	quota int64
	// loggedFull is true when it was logged that the store is full. Only Start and
	// Wait, which follow each other, use it.
	loggedFull bool
}

// Start starts etcd on the data folder and returns when it is ready. Its errors say
// what is wrong with the folder and what to do.
func Start(ctx context.Context, options Options) (*Server, error) {
	dataDir, err := filepath.Abs(options.DataDir)
	if err != nil {
		return nil, fmt.Errorf("finding the data directory %q: %w", options.DataDir, err)
	}
	sockets := filepath.Join(dataDir, "sockets")
	clientSocket := filepath.Join(sockets, "client")
	if len(clientSocket) > maxSocketPathBytes {
		return nil, fmt.Errorf("the data directory %s has too long a path for unix sockets (%d bytes, at most %d): choose a shorter --data-dir", dataDir, len(dataDir), maxSocketPathBytes-(len(clientSocket)-len(dataDir)))
	}
	for _, dir := range []string{dataDir, sockets} {
		if err := makePrivateDir(dir); err != nil {
			return nil, err
		}
	}
	lock, err := lockDir(ctx, dataDir, options.LockTimeout)
	if err != nil {
		return nil, err
	}
	// A socket that a killed process left behind would keep etcd from listening.
	if err := os.Remove(clientSocket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, errors.Join(fmt.Errorf("removing the old socket %s: %w", clientSocket, err), lock.Close())
	}

	quota, onVolume, err := space(options, dataDir)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	fatal := make(chan error, 1)
	serving := &atomic.Bool{}
	config := newConfig(newZapLogger(klog.FromContext(ctx), serving, fatal), dataDir, clientSocket, quota)
	etcd, err := open(config, fatal)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the store in %s cannot be opened, it may be damaged (restore it from a backup, or move it away to begin empty): %w", dataDir, err), lock.Close())
	}
	server := &Server{etcd: etcd, fatal: fatal, serving: serving, lock: lock, endpoint: config.ListenClientUrls[0].String(), volume: onVolume, quota: quota}
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("etcd on %s did not become ready within %s", dataDir, startTimeout))
	defer cancel()
	select {
	case <-etcd.Server.ReadyNotify():
		// A store that cannot be made smaller serves what it has.
		if err := errors.Join(server.dropHistory(ctx), server.trim(ctx), server.keepSpace(ctx)); err != nil {
			klog.FromContext(ctx).Error(err, "Failed to shrink the database", "dataDir", dataDir)
		}
		serving.Store(true)
		return server, nil
	case err := <-etcd.Err():
		return nil, errors.Join(fmt.Errorf("starting etcd on %s: %w", dataDir, err), server.Close())
	case err := <-fatal:
		// Closing waits for the goroutine that has just ended.
		return nil, fmt.Errorf("starting etcd on %s: %w", dataDir, err)
	case <-ctx.Done():
		return nil, errors.Join(context.Cause(ctx), server.Close())
	}
}

// Endpoint is the address that etcd clients of this process connect to.
func (s *Server) Endpoint() string { return s.endpoint }

// Wait returns the reason when etcd fails, or nil when ctx ends. Meanwhile it keeps
// the database small.
func (s *Server) Wait(ctx context.Context) error {
	trims := time.NewTicker(trimInterval)
	defer trims.Stop()
	spaceChecks := time.NewTicker(spaceInterval)
	defer spaceChecks.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-s.etcd.Err():
			return fmt.Errorf("the embedded etcd failed: %w", err)
		case err := <-s.fatal:
			return fmt.Errorf("the embedded etcd failed: %w", err)
		case <-spaceChecks.C:
			if err := s.keepSpace(ctx); err != nil {
				klog.FromContext(ctx).Error(err, "Failed to make space in the store, will retry")
			}
		case <-trims.C:
			if err := s.trim(ctx); err != nil {
				klog.FromContext(ctx).Error(err, "Failed to shrink the database")
			}
		}
	}
}

// Close ends etcd and releases the data directory. Nothing may use the store
// any more when it is called.
func (s *Server) Close() error {
	s.serving.Store(false)
	s.etcd.Close()
	if err := s.lock.Close(); err != nil {
		return fmt.Errorf("releasing the lock of the data directory: %w", err)
	}
	return nil
}

// space returns the quota of the database, and the volume that it is on.
func space(options Options, dataDir string) (int64, volume, error) {
	onVolume := options.volume
	if onVolume == nil {
		onVolume = volumeOf(dataDir)
	}
	if options.quota > 0 {
		return options.quota, onVolume, nil
	}
	total, _, err := onVolume()
	return quotaFor(total), onVolume, err
}

// lockDir makes this process the only one that uses the folder. It waits up to the
// timeout for another process that does.
func lockDir(ctx context.Context, dataDir string, timeout time.Duration) (*fileutil.LockedFile, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	retry := time.NewTicker(lockRetryInterval)
	defer retry.Stop()
	for waited := false; ; waited = true {
		lock, err := fileutil.TryLockFile(filepath.Join(dataDir, "lock"), os.O_WRONLY|os.O_CREATE, fileutil.PrivateFileMode)
		if err == nil {
			return lock, nil
		}
		if !errors.Is(err, fileutil.ErrLocked) {
			return nil, fmt.Errorf("the data directory %s cannot be written (give the user of this process write permission, or choose another --data-dir): %w", dataDir, err)
		}
		if !waited && timeout > 0 {
			klog.FromContext(ctx).Info("Waiting for another process to end its use of the data directory", "dataDir", dataDir, "timeout", timeout)
		}
		select {
		case <-retry.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("the data directory %s is in use by another process: end it, or choose another --data-dir", dataDir)
		}
	}
}

func makePrivateDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("creating the data directory %s (create it, or choose another --data-dir): %w", dir, err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("inspecting the data directory %s: %w", dir, err)
	}
	if info.Mode().Perm()&0o077 == 0 {
		return nil
	}
	// A volume often has wider permissions.
	if err := os.Chmod(dir, 0o700); err != nil {
		return fmt.Errorf("making the data directory %s private to its user (it holds every object; change its owner to the user of this process): %w", dir, err)
	}
	return nil
}

func newConfig(logger *zap.Logger, dataDir, clientSocket string, quota int64) *embed.Config {
	client := url.URL{Scheme: "unix", Path: clientSocket}
	config := embed.NewConfig()
	config.Name = memberName
	config.Dir = filepath.Join(dataDir, "etcd")
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	// There are no peers. The default address to advertise is part of the
	// identity of the cluster, but etcd does not listen on it.
	config.ListenPeerUrls = nil
	config.InitialCluster = config.InitialClusterFromName(memberName)
	config.QuotaBackendBytes = quota
	config.MaxWalFiles = logFiles
	config.SnapshotCount, config.SnapshotCatchUpEntries = snapshotAfter, catchUpEntries
	config.EnableGRPCGateway = false
	config.ZapLoggerBuilder = embed.NewZapLoggerBuilder(logger)
	return config
}

// open starts etcd on a database that is in order.
func open(config *embed.Config, fatal <-chan error) (*embed.Etcd, error) {
	if err := checkDatabase(datadir.ToBackendFileName(config.Dir)); err != nil {
		return nil, err
	}
	return startReporting(config, fatal)
}

// startReporting starts etcd, and returns as an error what etcd itself reports with
// a log entry or a panic in the goroutine that finds the store unreadable.
func startReporting(config *embed.Config, fatal <-chan error) (*embed.Etcd, error) {
	type result struct {
		etcd *embed.Etcd
		err  error
	}
	started := make(chan result, 1)
	go func() {
		defer func() {
			if reason := recover(); reason != nil {
				started <- result{err: fmt.Errorf("etcd panicked: %v", reason)}
			}
		}()
		etcd, err := embed.StartEtcd(config)
		started <- result{etcd, err}
	}()
	select {
	case result := <-started:
		return result.etcd, result.err
	case err := <-fatal:
		return nil, err
	}
}
