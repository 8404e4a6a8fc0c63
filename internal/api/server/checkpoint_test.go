package server_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/api/server"
)

// A checkpoint is an archive that only root reads, in the folder and of the name that the Kubelet
// Checkpoint API has.
func TestCheckpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "checkpoints")
		var asked runtimeapi.CheckpointContainerRequest
		k := serveKubeletWith(t, wholeNode(t), server.Kubelet{
			Authentication: server.Authentication{Anonymous: true}, Checkpoints: server.Checkpoints{Runtime: checkpointer{asked: &asked}, Dir: dir},
		})
		got := k.ask(k.secure, "POST", "/checkpoint/default/web/main?timeout=90", credential{})
		var body struct{ Items []string }
		if err := json.Unmarshal([]byte(got.Body), &body); err != nil || got.Status != 200 || len(body.Items) != 1 {
			t.Fatalf("%d %s: %v", got.Status, got.Body, err)
		}
		path := body.Items[0]
		if asked.ContainerId != "c-main" || asked.Timeout != 90 || asked.Location != path || filepath.Dir(path) != dir {
			t.Errorf("the runtime was asked %v, and the answer is %s", &asked, path)
		}
		if name := filepath.Base(path); !regexp.MustCompile(`^checkpoint-web_default-main-\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z\.tar$`).MatchString(name) {
			t.Errorf("the archive is called %s", name)
		}
		for path, want := range map[string]os.FileMode{dir: os.ModeDir | 0o700, path: 0o600} {
			if st, err := os.Stat(path); err != nil || st.Mode() != want {
				t.Errorf("%s: %v, %v; want %v", path, st.Mode(), err, want)
			}
		}
	})
}

// What a failed checkpoint leaves is removed, and why it failed is said.
func TestCheckpointFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		k := serveKubeletWith(t, wholeNode(t), server.Kubelet{
			Authentication: server.Authentication{Anonymous: true}, Checkpoints: server.Checkpoints{Runtime: checkpointer{err: errors.New("criu is not here")}, Dir: dir},
		})
		got := k.ask(k.secure, "POST", "/checkpoint/default/web/main", credential{})
		if got.Status != 500 || !strings.Contains(got.Body, "checkpoint of default/web/main: criu is not here") {
			t.Errorf("%d %s", got.Status, got.Body)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("%v is left: %v", left, err)
		}
		for _, timeout := range []string{"-1", "3601", "1s", "1.5", "9223372036854775808"} {
			if got := k.ask(k.secure, "POST", "/checkpoint/default/web/main?timeout="+timeout, credential{}); got.Status != 400 || !strings.Contains(got.Body, "timeout: ") {
				t.Errorf("timeout=%s: %d %s", timeout, got.Status, got.Body)
			}
		}
	})
}

// Without the feature gate the path does not exist.
func TestNoCheckpoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := serveKubeletWith(t, wholeNode(t), server.Kubelet{Authentication: server.Authentication{Anonymous: true}})
		if got := k.ask(k.secure, "POST", "/checkpoint/default/web/main", credential{}); got.Status != 404 {
			t.Errorf("%d %s", got.Status, got.Body)
		}
	})
}
