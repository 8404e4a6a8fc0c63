package localapi

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/localapi/kinds"
	"berth/internal/localapi/store"
)

// folders are short: the path of a socket has 107 bytes at most.
func folders(t *testing.T) (rootDir, runDir string) {
	t.Helper()
	runDir, err := os.MkdirTemp("", "run")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(runDir) })
	return t.TempDir(), runDir
}

func openAPI(t *testing.T, rootDir, runDir string) *Server {
	t.Helper()
	s, err := Open(Config{RootDir: rootDir, RunDir: runDir, NodeName: "n", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func write(t *testing.T, s *Server, name string) {
	t.Helper()
	value, err := kinds.Encode(&v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: name}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.store.Write(store.Key{Resource: "configmaps", Namespace: "x", Name: name}, 0, value); err != nil {
		t.Fatal(err)
	}
}

func has(s *Server, name string) bool {
	_, err := s.store.Get(store.Key{Resource: "configmaps", Namespace: "x", Name: name})
	return err == nil
}

// serveSocket serves as the socket does to whoever may do all, at the path of the socket.
func serveSocket(t *testing.T, runDir string, h http.Handler) {
	t.Helper()
	if err := os.Remove(SocketPath(runDir)); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", SocketPath(runDir))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(h)
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	if err := server.Listener.Close(); err != nil {
		t.Fatal(err)
	}
	server.Listener = l
	server.Start()
	t.Cleanup(server.Close)
}

// fullDisk takes nothing.
type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, unix.ENOSPC }

func TestBackupAndRestore(t *testing.T) {
	rootDir, runDir := folders(t)
	var offline, online bytes.Buffer
	if err := Backup(rootDir, &offline); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("of nothing: %v", err)
	}
	s := openAPI(t, rootDir, runDir)
	write(t, s, "before")
	serveSocket(t, runDir, s.frontend.handlerOf(listener{name: "socket"}, s.mux))
	if err := BackupFromAgent(t.Context(), runDir, &online); err != nil {
		t.Fatal(err)
	}
	if _, err := Restore(rootDir, bytes.NewReader(online.Bytes())); err == nil || !strings.Contains(err.Error(), "restore "+objectsFile(rootDir)) {
		t.Errorf("restored while it is open: %v", err)
	}
	if err := BackupFromAgent(t.Context(), runDir, fullDisk{}); !errors.Is(err, unix.ENOSPC) || strings.Contains(err.Error(), "broke") {
		t.Errorf("on a full disk: %v; the agent is not the reason", err)
	}
	write(t, s, "after")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := Backup(rootDir, &offline); err != nil {
		t.Fatal(err)
	}
	if _, err := Restore(rootDir, bytes.NewReader(online.Bytes()[:online.Len()-1])); err == nil || !strings.Contains(err.Error(), "the backup is not whole") {
		t.Errorf("cut off: %v", err)
	}
	for _, c := range []struct {
		backup []byte
		after  bool
	}{{online.Bytes(), false}, {offline.Bytes(), true}} {
		replaced, err := Restore(rootDir, bytes.NewReader(c.backup))
		if err != nil || replaced != objectsFile(rootDir)+".replaced" {
			t.Fatalf("%q, %v", replaced, err)
		}
		s := openAPI(t, rootDir, runDir)
		if !has(s, "before") || has(s, "after") != c.after {
			t.Errorf("before %v, after %v; want after %v", has(s, "before"), has(s, "after"), c.after)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	elsewhere := filepath.Join(t.TempDir(), "new")
	if replaced, err := Restore(elsewhere, &online); err != nil || replaced != "" {
		t.Errorf("into a new root directory: %q, %v", replaced, err)
	}
}

func TestBackupIsServedByTheSocketAlone(t *testing.T) {
	rootDir, runDir := folders(t)
	s := openAPI(t, rootDir, runDir)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	asked := func(l listener, method string) int {
		w := httptest.NewRecorder()
		s.frontend.handlerOf(l, s.mux).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, backupPath, http.NoBody))
		return w.Code
	}
	if code := asked(listener{name: "socket"}, http.MethodPost); code != http.StatusOK {
		t.Errorf("the socket answers %d", code)
	}
	if code := asked(listener{name: "socket"}, http.MethodGet); code != http.StatusMethodNotAllowed {
		t.Errorf("the socket answers a GET by %d", code)
	}
	if code := asked(listener{name: "port", tls: &tls.Config{}}, http.MethodPost); code == http.StatusOK {
		t.Error("the port serves a backup")
	}
}

func TestBackupThatIsBrokenOff(t *testing.T) {
	rootDir, runDir := folders(t)
	if err := BackupFromAgent(t.Context(), runDir, &bytes.Buffer{}); !errors.Is(err, ErrNotServed) {
		t.Errorf("without an agent: %v", err)
	}
	s := openAPI(t, rootDir, runDir)
	serveSocket(t, runDir, s.frontend.handlerOf(listener{name: "socket"}, s.mux))
	if err := s.Close(); err != nil { // the store cannot be read any more
		t.Fatal(err)
	}
	serveSocket(t, runDir, s.frontend.handlerOf(listener{name: "socket"}, s.mux))
	if err := BackupFromAgent(t.Context(), runDir, &bytes.Buffer{}); err == nil || errors.Is(err, ErrNotServed) {
		t.Errorf("of a store that is closed: %v", err)
	}
	serveSocket(t, runDir, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no such user", http.StatusUnauthorized) }))
	if err := BackupFromAgent(t.Context(), runDir, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "401 Unauthorized: no such user") {
		t.Errorf("refused: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := BackupFromAgent(ctx, runDir, &bytes.Buffer{}); !errors.Is(err, context.Canceled) {
		t.Errorf("given up: %v", err)
	}
}

func TestRequestToken(t *testing.T) {
	_, runDir := folders(t)
	if _, err := RequestToken(t.Context(), runDir, "x", "robot", time.Hour); !errors.Is(err, ErrNotServed) {
		t.Errorf("without an agent: %v", err)
	}
	serveSocket(t, runDir, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var asked authenticationv1.TokenRequest
		if err := json.NewDecoder(r.Body).Decode(&asked); err != nil || r.Method != http.MethodPost || asked.Kind != "TokenRequest" {
			t.Errorf("%s of a %s, %v", r.Method, asked.Kind, err)
		}
		if r.URL.Path != "/api/v1/namespaces/x/serviceaccounts/robot/token" {
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte(`{"kind":"Status","message":"serviceaccounts \"none\" not found"}`))
			return
		}
		asked.Status.Token = fmt.Sprint("for ", *asked.Spec.ExpirationSeconds)
		w.WriteHeader(http.StatusCreated)
		if err := json.NewEncoder(w).Encode(asked); err != nil {
			t.Error(err)
		}
	}))
	if token, err := RequestToken(t.Context(), runDir, "x", "robot", time.Hour); token != "for 3600" || err != nil {
		t.Errorf("%q, %v", token, err)
	}
	if _, err := RequestToken(t.Context(), runDir, "x", "none", time.Hour); err == nil || !strings.HasSuffix(err.Error(), `answers 404 Not Found: serviceaccounts "none" not found`) {
		t.Errorf("of an account that is not there: %v", err)
	}
}
