package kuberuntime

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
)

// A container that has been given its pod's folder puts links in the place of what the agent keeps
// there: nothing of the host is made, changed or removed through them.
func TestLinksInThePodsFolder(t *testing.T) {
	for _, name := range []string{"containers", "containers/a", "etc-hosts", "containers/a/" + preStopFile} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				p := podOf(v1.RestartPolicyAlways, "a")
				p.Spec.Containers[0].TerminationMessagePath = "/dev/termination-log"
				b.run(p)
				host := filepath.Join(t.TempDir(), "host")
				precious := []string{"precious", "a", preStopFile}
				if err := os.Mkdir(host, 0o755); err != nil {
					t.Fatal(err)
				}
				for _, file := range precious {
					if err := os.WriteFile(filepath.Join(host, file), []byte("precious"), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				target := host
				if name == "etc-hosts" || filepath.Base(name) == preStopFile {
					target = filepath.Join(host, "precious")
				}
				at := filepath.Join(b.starter.files.dir(p.UID), name)
				if err := errors.Join(os.RemoveAll(at), os.Symlink(target, at)); err != nil {
					t.Fatal(err)
				}
				_, _ = b.hooks.files.recordPreStop(p.UID, &b.observe().Containers[0])
				if _, err := b.starter.files.makeTerminationLog(p, &p.Spec.Containers[0]); (err == nil) != (target != host) {
					t.Errorf("a file for the message of the next container: %v", err)
				}
				if _, err := b.starter.hosts.write(p, []string{"192.0.2.1"}); (err == nil) != (name != "etc-hosts") {
					t.Errorf("the hosts file: %v", err)
				}
				if got := b.WithTerminationMessages(t.Context(), &pod.Status{Containers: []pod.ContainerStatus{{
					ID: "x", State: pod.StateExited, TerminationLog: filepath.Join(at, "precious"),
				}}}); got.Containers[0].Message != "" {
					t.Errorf("a message %q", got.Containers[0].Message)
				}
				if err := b.starter.files.removeTerminationLog(filepath.Join(at, "precious")); (name == "containers" || name == "containers/a") && !errors.Is(err, unix.ELOOP) {
					t.Errorf("remove a message: %v", err)
				}
				for _, file := range precious {
					if content, err := os.ReadFile(filepath.Join(host, file)); err != nil || string(content) != "precious" {
						t.Errorf("%s of the host: %q, %v", file, content, err)
					}
				}
				if entries, err := os.ReadDir(host); err != nil || len(entries) != len(precious) {
					t.Errorf("of the host there is %v, %v", entries, err)
				}
			})
		})
	}
}

// One that has been given the folder of all logs cannot have the agent make or remove files
// elsewhere.
func TestLinksAmongLogs(t *testing.T) {
	l := &podLogs{dir: filepath.Join(t.TempDir(), "pods"), linkDir: filepath.Join(t.TempDir(), "containers")}
	host, dir := t.TempDir(), filepath.Join(l.dir, "default_web_u")
	for _, err := range []error{
		os.MkdirAll(dir, 0o755), os.Symlink(host, filepath.Join(dir, "a")), os.WriteFile(filepath.Join(host, "0.log"), nil, 0o600),
		os.WriteFile(filepath.Join(host, "1.log.gz"), nil, 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, attempt := range []uint32{1, 7} {
		cs := &pod.ContainerStatus{Name: "a", Attempt: attempt, LogPath: filepath.Join(dir, "a/1.log")}
		if err := removeLog(cs.LogPath); !errors.Is(err, unix.ELOOP) {
			t.Errorf("remove a log: %v", err)
		}
		if err := saveRestartCount(cs); !errors.Is(err, unix.ELOOP) {
			t.Errorf("keep a log: %v", err)
		}
	}
	if err := l.remove("default", "web", "u"); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the pod's folder: %v", err)
	}
	if entries, err := os.ReadDir(host); err != nil || len(entries) != 2 {
		t.Errorf("of the host there is %v, %v", entries, err)
	}
}

// A pod whose log folder, or a folder of its own, was replaced by a link to one of the host is
// removed like any other; what is behind the link stays.
func TestRemovePodWithLinks(t *testing.T) {
	for _, at := range []string{"logs/default_web_u1", "logs/default_web_u1/a", "pods/u1/containers", "pods/u1/containers/a"} {
		t.Run(at, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				p := podOf(v1.RestartPolicyAlways, "a")
				p.Spec.Containers[0].TerminationMessagePath = "/dev/termination-log"
				b.run(p)
				b.kill(p, 0)
				observed := b.observe()
				host, link := t.TempDir(), filepath.Join(b.root, at)
				err := errors.Join(os.WriteFile(filepath.Join(host, "0.log"), nil, 0o600), os.RemoveAll(link), os.Symlink(host, link))
				if err != nil {
					t.Fatal(err)
				}
				if err := errors.Join(b.RemovePod(t.Context(), observed, WithLogs), b.RemoveLogs("default", "web", "u1")); err != nil {
					t.Error(err)
				}
				if left := b.fake.Containers(); len(left) > 0 {
					t.Errorf("left %v", left)
				}
				if entries, err := os.ReadDir(host); err != nil || len(entries) != 1 {
					t.Errorf("of the host there is %v, %v", entries, err)
				}
			})
		})
	}
}
