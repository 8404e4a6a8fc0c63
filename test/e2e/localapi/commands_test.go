//go:build e2e

package localapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	agentserver "berth/internal/api/server"
	"berth/internal/localapi"
)

// berth runs the program that is tested over the API of a folder.
func (s *server) berth(in string, args ...string) (string, error) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, program(s.T, "BERTH"), append([]string{"--run-dir", s.dir + "/run"}, args...)...)
	c.Stdin, c.Env = strings.NewReader(in), append(os.Environ(), "HOME="+s.dir)
	out, err := c.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("berth %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), err
}

func (s *server) mustBerth(in string, args ...string) string {
	s.Helper()
	out, err := s.berth(in, args...)
	if err != nil {
		s.Fatal(err)
	}
	return out
}

// bundledRegistry is the program that berth kubectl has unpacked: it judges, too.
func (s *server) bundledRegistry() (string, error) {
	all, err := filepath.Glob(filepath.Join(s.dir, "root", "programs", "*", "bin", "apiserver"))
	if err != nil || len(all) != 1 {
		return "", fmt.Errorf("unpacked programs: %q, %w", all, err)
	}
	return all[0], nil
}

// answerAsAgent has an agent in the run directory that has a local API, and so no view of its node.
func answerAsAgent(t *testing.T, runDir string) {
	t.Helper()
	l, err := agentserver.Listen(runDir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	agent := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.NotFoundHandler(), ReadHeaderTimeout: time.Second}}
	agent.Start()
	t.Cleanup(agent.Close)
}

// TestCommands is a session of the commands of berth that are about the local API, with the
// programs that are inside it alone.
func TestCommands(t *testing.T) {
	t.Parallel()
	s := &server{T: t, dir: folder(t)}
	// As an agent writes it.
	if err := errors.Join(os.Mkdir(s.dir+"/run", 0o700), os.WriteFile(s.dir+"/run/agent.json", fmt.Appendf(nil, `{"rootDir":%q}`, s.dir+"/root"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if out := s.mustBerth("", "kubectl", "version", "--client"); !strings.Contains(out, "Client Version: v1.") {
		t.Errorf("berth kubectl version: %s", out)
	}
	if _, err := s.berth("", "kubectl", "get", "pods"); err == nil || !strings.Contains(err.Error(), "no agent is running on ") {
		t.Errorf("without an agent: %v", err)
	}
	running, stop := start(t, s.dir, func(c *localapi.Config) { c.Registry, c.Unpack = "", s.bundledRegistry })
	s.Server = running.Server
	answerAsAgent(t, s.dir+"/run")

	const object = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"default"}}`
	if out := s.mustBerth(object, "kubectl", "apply", "-f", "-"); out != "configmap/a created\n" {
		t.Errorf("apply: %s", out)
	}
	_, err := s.berth("", "kubectl", "get", "configmap", "none")
	if code, ok := errors.AsType[*exec.ExitError](err); !ok || code.ExitCode() != 1 || !strings.Contains(err.Error(), `configmaps "none" not found`) {
		t.Errorf("what is not there: %v", err)
	}
	if out := s.mustBerth("", "__complete", "kubectl", "get", "configmap", "a"); !strings.HasPrefix(out, "a\n:") {
		t.Errorf("completion: %q", out)
	}

	// A user of its own, and then no longer.
	mine := s.dir + "/ci"
	s.mustBerth("", "kubeconfig", "--user", "ci", "-n", "default", "--verbs", "get,list", "--resources", "configmaps", "-o", mine)
	if out := s.mustBerth("", "kubectl", "--kubeconfig", mine, "get", "configmaps", "-o", "name"); !strings.Contains(out, "configmap/a\n") {
		t.Errorf("get as ci: %s", out)
	}
	for _, args := range [][]string{{"get", "pods"}, {"delete", "configmap", "a"}} {
		if _, err := s.berth("", append([]string{"kubectl", "--kubeconfig", mine}, args...)...); err == nil || !strings.Contains(err.Error(), `forbidden: User "ci" cannot`) {
			t.Errorf("%q as ci: %v", args, err)
		}
	}
	s.mustBerth("", "kubeconfig", "--user", "ci", "--remove")
	if _, err := s.berth("", "kubectl", "--kubeconfig", mine, "get", "configmaps"); err == nil || !strings.Contains(err.Error(), `forbidden: User "ci" cannot`) {
		t.Errorf("get as ci, who may no longer: %v", err)
	}

	// A service account, by a token.
	robot := s.dir + "/robot"
	s.mustBerth("", "kubectl", "create", "serviceaccount", "robot")
	s.mustBerth("", "kubeconfig", "--user", "system:serviceaccount:default:robot", "--token", "--verbs", "get", "--resources", "configmaps", "-o", robot)
	if out := s.mustBerth("", "kubectl", "--kubeconfig", robot, "get", "configmap", "a", "-n", "default", "-o", "name"); out != "configmap/a\n" {
		t.Errorf("get as robot: %s", out)
	}
	s.mustBerth("", "kubectl", "delete", "serviceaccount", "robot")
	if _, err := s.berth("", "kubectl", "--kubeconfig", robot, "get", "configmap", "a"); err == nil || !strings.Contains(err.Error(), "must be logged in") {
		t.Errorf("get as robot, who is gone: %v", err)
	}

	// A backup while the API serves, and back.
	file := s.dir + "/backup"
	s.mustBerth("", "backup", file)
	s.mustBerth("", "kubectl", "delete", "configmap", "a")
	if _, err := s.berth("", "restore", file); err == nil {
		t.Error("restored while the API serves")
	}
	stop()
	if out := s.mustBerth("", "restore", file); !strings.Contains(out, filepath.Join("root", "api", "objects.db.replaced")) {
		t.Errorf("restore: %s", out)
	}
	start(t, s.dir, func(c *localapi.Config) { c.Registry, c.Unpack = "", s.bundledRegistry })
	if out := s.mustBerth("", "kubectl", "get", "configmap", "a", "-o", "name"); out != "configmap/a\n" {
		t.Errorf("restored: %s", out)
	}
}
