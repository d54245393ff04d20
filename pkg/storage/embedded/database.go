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
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime/debug"

	"go.etcd.io/bbolt"
)

// checkDatabase reads a whole database file, if it exists. The database panics on a
// damaged page, and etcd reads it in a goroutine whose panics cannot be recovered.
// Read here first, the damage is an error.
func checkDatabase(path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("inspecting the database: %w", err)
	case info.Size() == 0:
		// The process ended before the first write; etcd begins with a new one.
		return nil
	}
	database, err := bbolt.Open(path, info.Mode().Perm(), &bbolt.Options{ReadOnly: true})
	if err != nil {
		return fmt.Errorf("opening the database: %w", err)
	}
	return errors.Join(readAll(database), database.Close())
}

func readAll(database *bbolt.DB) (err error) {
	// A page that leads out of the file is a memory fault.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if reason := recover(); reason != nil {
			err = fmt.Errorf("reading the database: %v", reason)
		}
	}()
	return database.View(func(tx *bbolt.Tx) error {
		return tx.ForEach(func(_ []byte, bucket *bbolt.Bucket) error { return readBucket(bucket) })
	})
}

func readBucket(bucket *bbolt.Bucket) error {
	return bucket.ForEach(func(key, value []byte) error {
		if value == nil {
			return readBucket(bucket.Bucket(key))
		}
		return nil
	})
}
