package agent_test

import (
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"berth/agent/agenttest"
	"berth/internal/checkpoint/checkpointtest"
	"berth/internal/health"
)

// A file that cannot be written shows in the agent's health until it can be written again. Pods go
// on.
func TestUnsavedState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := agenttest.New(t)
		persistence := func() health.State {
			for _, s := range w.Agent.Handlers().Health.Conditions() {
				if s.Code == health.Persistence {
					return s
				}
			}
			t.Fatal("nobody tells of files")
			return health.State{}
		}
		file := filepath.Join(filepath.Dir(w.RunDir()), "root", "statuses.json")
		mend := checkpointtest.ReadOnly(t, file)
		began := time.Now()
		w.Write("web.yaml", []byte("apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: main, image: "+agenttest.Image+"}]}\n"))
		w.Settle(30 * time.Second)
		if s := persistence(); !strings.Contains(s.Error, "statuses of pods") || !strings.Contains(s.Error, file) {
			t.Errorf("while a file cannot be written: %q since %v, written to since %v", s.Error, s.Since, began)
		}
		if pods := w.Agent.Handlers().Pods.List(); len(pods) != 1 || pods[0].Status.Phase != "Running" {
			t.Errorf("the pods are %v", pods)
		}
		mend()
		w.Settle(15 * time.Second)
		if s := persistence(); s.Error != "" {
			t.Errorf("when the file can be written again: %q", s.Error)
		}
	})
}
