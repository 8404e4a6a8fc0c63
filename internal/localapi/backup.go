package localapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"

	"berth/internal/localapi/store"
)

func objectsFile(rootDir string) string { return filepath.Join(rootDir, Dir, "objects.db") }

// SocketPath returns the path of the root-only API socket in the agent's run directory.
func SocketPath(runDir string) string { return filepath.Join(runDir, "api.sock") }

// backupPath serves a backup, on the socket only. It is a POST so that the request is logged, as
// every change is.
const backupPath = "/berth/backup"

// handlerOf returns the handler of a listener's authorized requests.
func (f *frontend) handlerOf(l listener, next http.Handler) http.Handler {
	if l.tls != nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == backupPath {
			f.serveBackup(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (f *frontend) serveBackup(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "a backup is made by POST", http.StatusMethodNotAllowed)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	if err := f.store.Backup(w); err != nil {
		f.cfg.Log.Error("backup of the local API broken off", "error", err)
		panic(http.ErrAbortHandler) // the client sees the abort, and discards what it has received
	}
}

// BackupFromAgent writes a backup of all objects to w, through the agent of the run directory. The
// error wraps ErrNotServed if no agent runs, or if it has no local API.
func BackupFromAgent(ctx context.Context, runDir string, w io.Writer) error {
	return post(ctx, runDir, backupPath, nil, func(answer io.Reader) error {
		to := &sink{Writer: w}
		if _, err := io.Copy(to, answer); to.failed != nil {
			return to.failed
		} else if err != nil {
			return fmt.Errorf("the local API on %s broke the backup off, its log says why: %w", SocketPath(runDir), err)
		}
		return nil
	})
}

// sink is a writer that stores its error, to tell it from an error of the reader.
type sink struct {
	io.Writer

	failed error
}

func (s *sink) Write(p []byte) (n int, err error) {
	n, err = s.Writer.Write(p)
	s.failed = err
	return n, err
}

// Backup writes a backup of the objects of a root directory to w. The caller holds the lock of the
// directory, so that no agent uses it.
func Backup(rootDir string, w io.Writer) (err error) {
	path := objectsFile(rootDir)
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("objects of the local API: %w; it has none before it was on", err)
	}
	s, err := store.Open(storeConfig(rootDir, slog.Default()))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	return s.Backup(w)
}

// Restore replaces the objects of a root directory by those of a backup. It preserves the existing
// file under the name that it returns, "" if there was none. The caller holds the lock of the
// directory. An incomplete backup changes nothing.
func Restore(rootDir string, backup io.Reader) (replaced string, err error) {
	path := objectsFile(rootDir)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", err
	}
	if _, err := os.Stat(path); err == nil {
		replaced = path + ".replaced"
	}
	return replaced, store.Restore(path, backup)
}
