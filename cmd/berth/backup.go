package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"berth/internal/host/rootlock"
	"berth/internal/localapi"
)

func newBackupCommand(g *globalFlags) *cobra.Command {
	var rootDir string
	cmd := &cobra.Command{
		Use:   "backup FILE",
		Short: "Back up all objects of the local API",
		Long: `Write all objects of the local API ("berth run") to a file that only root can read. It contains Secrets in plain text.

A running agent writes a consistent snapshot and keeps serving. Without an agent, the objects are read from its root directory.
"berth restore" restores the file. It does not contain manifest files, access.yaml, or the certificates of the local API.`,
		Example: `  berth backup /var/backups/berth.backup`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := writeWhole(args[0], func(w io.Writer) error { return backup(cmd, rootDir, g.runDir, w) })
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "Wrote %s, %d bytes.\n", args[0], n)
			return err
		},
	}
	cmd.Flags().StringVar(&rootDir, "root-dir", "", rootDirUsage)
	return cmd
}

// backup writes a backup through the agent of the run directory if that agent serves requests and
// uses the root directory. Otherwise it reads the root directory itself.
func backup(cmd *cobra.Command, rootDir, runDir string, w io.Writer) error {
	runDir, err := filepath.Abs(runDir)
	if err != nil {
		return err
	}
	agents, err := agentRoot("", runDir)
	if err != nil {
		return err
	}
	root, err := apiRoot(rootDir, runDir)
	if err != nil {
		return err
	}
	served := error(localapi.ErrNotServed)
	if root == agents {
		served = localapi.BackupFromAgent(cmd.Context(), runDir, w)
	}
	if !errors.Is(served, localapi.ErrNotServed) {
		return onlyRoot(served)
	}
	unlock, err := rootlock.Lock(root)
	if err != nil {
		return fmt.Errorf("%w; and it serves no backup on %s", onlyRoot(err), localapi.SocketPath(runDir))
	}
	defer unlock()
	return localapi.Backup(root, w)
}

// writeWhole writes a file with mode 0600 atomically and returns its size in bytes.
func writeWhole(path string, write func(io.Writer) error) (size int64, err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".")
	if err != nil {
		return 0, fmt.Errorf("write %s: %w", path, err)
	}
	defer func() {
		if err == nil {
			return
		}
		if failed, ok := errors.AsType[*fs.PathError](err); ok && failed.Path == f.Name() { // the user did not pass the temporary name
			err = fmt.Errorf("write %s: %w", path, failed.Err)
		}
		err = errors.Join(err, os.Remove(f.Name()))
	}()
	if err = write(f); err == nil {
		err = f.Sync()
	}
	if err == nil {
		size, err = f.Seek(0, io.SeekCurrent)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return 0, err
	}
	return size, os.Rename(f.Name(), path)
}

func newRestoreCommand(g *globalFlags) *cobra.Command {
	var rootDir string
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Restore all objects of the local API from a backup",
		Long: `Replace all objects of the local API with the objects of a file that "berth backup" wrote.

No agent may use the root directory meanwhile: stop it with "berth stop", which leaves its pods running. The file is verified before
anything is replaced. The previous objects are kept in objects.db.replaced. When the agent starts again, it terminates pods that are not
in the backup. Pods that have terminated on this machine since the backup are not run again.`,
		Example: `  berth stop
  berth restore /var/backups/berth.backup
  berth run`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			file, err := os.Open(args[0])
			if err != nil {
				return err
			}
			defer file.Close()
			root, err := agentRoot(rootDir, g.runDir)
			if err != nil {
				return err
			}
			unlock, err := rootlock.Lock(root)
			if err != nil {
				return fmt.Errorf("restore: %w", onlyRoot(err))
			}
			defer unlock()
			replaced, err := localapi.Restore(root, file)
			if err != nil {
				return onlyRoot(err)
			}
			text := "Restored the objects of " + root + "."
			if replaced != "" {
				text += " Those from before are in " + replaced + "."
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), text)
			return err
		},
	}
	cmd.Flags().StringVar(&rootDir, "root-dir", "", rootDirUsage)
	return cmd
}
