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
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/truefoundry/elasti-apiserver/pkg/storage/embedded"
)

// newSnapshotCommand returns the command that backs up and restores the embedded
// store.
func newSnapshotCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "snapshot",
		Short: "Back up and restore what --storage=embedded stores",
		Long: `Back up and restore what --storage=embedded stores. An external etcd has its own
tools for this, and the host cluster's backup holds what --storage=cluster stores.`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error { return command.Help() },
	}
	command.AddCommand(newSnapshotSaveCommand(), newSnapshotRestoreCommand(), newSnapshotStatusCommand())
	useOwnHelp(command)
	return command
}

// useOwnHelp gives a command and those below it their own help. That of the parent
// describes the flags of the server.
func useOwnHelp(command *cobra.Command) {
	usage := (&cobra.Command{}).UsageFunc()
	help := (&cobra.Command{}).HelpFunc()
	for _, each := range append(command.Commands(), command) {
		each.SetUsageFunc(usage)
		each.SetHelpFunc(help)
	}
}

func newSnapshotSaveCommand() *cobra.Command {
	var dataDir string
	command := &cobra.Command{
		Use:   "save FILE --data-dir DIRECTORY",
		Short: "Write a snapshot of the store of a running server to FILE",
		Args:  cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			if err := embedded.SaveSnapshot(command.Context(), dataDir, args[0]); err != nil {
				return err
			}
			return printStatus(command, args[0])
		},
	}
	addDataDir(command, &dataDir, "The --data-dir of the running server.")
	return command
}

func newSnapshotRestoreCommand() *cobra.Command {
	var dataDir string
	command := &cobra.Command{
		Use:   "restore FILE --data-dir DIRECTORY",
		Short: "Make the store of a server that is not running from the snapshot in FILE",
		Long: `Make the store of a server that is not running from the snapshot in FILE. The
directory must have no store. Objects get versions that are later than any that
clients have seen, so that these begin anew.`,
		Args: cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			if err := embedded.RestoreSnapshot(command.Context(), args[0], dataDir); err != nil {
				return err
			}
			_, err := fmt.Fprintf(command.OutOrStdout(), "Restored to %s. Start the server with this --data-dir.\n", dataDir)
			return err
		},
	}
	addDataDir(command, &dataDir, "The --data-dir that the server will be started with.")
	return command
}

func newSnapshotStatusCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "status FILE",
		Short: "Check a snapshot and show what it holds",
		Args:  cobra.ExactArgs(1),
		RunE:  func(command *cobra.Command, args []string) error { return printStatus(command, args[0]) },
	}
}

func addDataDir(command *cobra.Command, dataDir *string, usage string) {
	command.Flags().StringVar(dataDir, "data-dir", "", usage+" Required.")
	// It fails for a flag that does not exist.
	_ = command.MarkFlagRequired("data-dir")
}

func printStatus(command *cobra.Command, file string) error {
	status, err := embedded.ReadSnapshot(file)
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(command.OutOrStdout(), 0, 0, 3, ' ', 0)
	_, err = fmt.Fprintf(table, "REVISION\tKEYS\tBYTES\tHASH\n%d\t%d\t%d\t%08x\n",
		status.Revision, status.TotalKey, status.TotalSize, status.Hash)
	return errors.Join(err, table.Flush())
}
