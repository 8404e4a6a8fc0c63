package localapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"

	"berth/internal/localapi/store"
)

// objectsFile is the file of objects.
func objectsFile(rootDir string) string { return filepath.Join(rootDir, Dir, "objects.db") }

// SocketPath is the socket on which the agent of a run directory serves root.
func SocketPath(runDir string) string { return filepath.Join(runDir, "api.sock") }

// backupPath is where the socket, and it alone, serves a backup. It is a POST, so that there is a
// line of it in the log, as there is of whatever changes something.
const backupPath = "/berth/backup"

// handlerOf is what serves the clients of a listener that may do what they ask.
func (s *Server) handlerOf(l listener) http.Handler {
	if l.tls != nil {
		return http.HandlerFunc(s.serve)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == backupPath {
			s.serveBackup(w, r)
			return
		}
		s.serve(w, r)
	})
}

func (s *Server) serveBackup(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "a backup is made by POST", http.StatusMethodNotAllowed)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	if err := s.store.Backup(w); err != nil {
		s.cfg.Log.Error("backup of the local API broken off", "error", err)
		panic(http.ErrAbortHandler) // which the client sees, and takes what it has for no backup
	}
}

// ErrNotServed is that nobody answers on the socket of a run directory.
var ErrNotServed = errors.New("no agent serves the local API")

// BackupFromAgent writes a backup of all objects to w, by the agent of the run directory. The error
// wraps ErrNotServed if there is none, or it has no local API.
func BackupFromAgent(ctx context.Context, runDir string, w io.Writer) (err error) {
	path := SocketPath(runDir)
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		},
		DisableCompression: true,
	}
	defer transport.CloseIdleConnections()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://local"+backupPath, http.NoBody)
	if err != nil {
		return err
	}
	answer, err := transport.RoundTrip(r)
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" && !errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w on %s: %w", ErrNotServed, path, err)
	}
	if err != nil {
		return fmt.Errorf("ask the local API on %s: %w", path, err)
	}
	defer func() { err = errors.Join(err, answer.Body.Close()) }()
	if answer.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(io.LimitReader(answer.Body, 4<<10)) // what came of it
		return fmt.Errorf("the local API on %s answers %s: %s", path, answer.Status, said)
	}
	if _, err := io.Copy(w, answer.Body); err != nil {
		return fmt.Errorf("the local API on %s broke the backup off, its log says why: %w", path, err)
	}
	return nil
}

// Backup writes a backup of the objects of a root directory to w. The caller has the lock of the
// directory: no agent uses it.
func Backup(rootDir string, w io.Writer) (err error) {
	path := objectsFile(rootDir)
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("objects of the local API: %w; it has none before it was on", err)
	}
	s, err := store.Open(store.Config{Path: path})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	return s.Backup(w)
}

// Restore replaces the objects of a root directory by those of a backup. What was there stays beside
// it; it returns under which name, "" if there was nothing. The caller has the lock of the
// directory. A backup that is not whole changes nothing.
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
