package kuberuntime

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"berth/internal/host/safepath"
	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
	"berth/internal/runtime/cri"
	"berth/internal/runtime/cri/critest"
)

// A file that a container left is read only if it is what was made for it.
func TestReadTail(t *testing.T) {
	files := safepath.Root(t.TempDir())
	dir := filepath.Join(string(files), "pods/one")
	if err := os.MkdirAll(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	secret := write("secret", "of the host")
	link, fifo := filepath.Join(dir, "link"), filepath.Join(dir, "fifo")
	if err := os.Symlink(secret, link); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(unix.Mkfifo(fifo, 0o600), os.Symlink(dir, filepath.Join(dir, "up"))); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ name, path, want string }{
		{"none", "", ""},
		{"missing", filepath.Join(dir, "nothing"), ""},
		{"short", write("short", "abc"), "abc"},
		{"long", write("long", "0123456789"), "3456789"},
		{"link to another file", link, ""},
		{"link on the way", filepath.Join(dir, "up/secret"), ""},
		{"another folder", "/etc/hostname", ""},
		{"pipe that nobody writes to", fifo, ""},
		{"folder", dir, ""},
	} {
		if got := string(readTail(files, tc.path, 7)); got != tc.want {
			t.Errorf("%s: got %q, want %q", tc.name, got, tc.want)
		}
	}
}

func TestTerminationMessage(t *testing.T) {
	var lines strings.Builder
	for i := range 100 {
		fmt.Fprintf(&lines, "2026-01-02T03:04:05Z stdout F line %d\n", i)
	}
	last80 := make([]string, 80)
	for i := range last80 {
		last80[i] = fmt.Sprintf("line %d\n", i+20)
	}
	wide := "2026-01-02T03:04:05Z stderr F " + strings.Repeat("x", 3000) + "\n"
	fallback := string(v1.TerminationMessageFallbackToLogsOnError)
	for _, tc := range []struct {
		name, file, log, policy, reason, runtime string
		code                                     int32
		want                                     string
	}{
		{name: "nothing"},
		{name: "file", file: "it broke", code: 1, want: "it broke"},
		{name: "file of one that succeeded", file: "fine", want: "fine"},
		{name: "its last 4096 bytes", file: "a" + strings.Repeat("b", 4096), want: strings.Repeat("b", 4096)},
		{name: "after the runtime's own", file: "it broke", runtime: "oops", want: "oops: it broke"},
		{name: "no fallback without the policy", log: lines.String(), code: 1},
		{name: "no fallback after success", log: lines.String(), policy: fallback},
		{name: "no fallback if it never ran", log: lines.String(), policy: fallback, code: 128, reason: lifecycle.ContainerCannotRun},
		{name: "the file comes before the log", file: "it broke", log: lines.String(), policy: fallback, code: 1, want: "it broke"},
		{name: "the last 80 lines", log: lines.String(), policy: fallback, code: 1, want: strings.Join(last80, "")},
		{name: "the last 2048 bytes", log: wide, policy: fallback, code: 1, want: strings.Repeat("x", 2047) + "\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			root := t.TempDir()
			dir := filepath.Join(root, "pods/one")
			if err := os.MkdirAll(dir, 0o750); err != nil {
				t.Fatal(err)
			}
			cs := pod.ContainerStatus{
				ID: "c", Name: "a", State: pod.StateExited, ExitCode: tc.code, Reason: tc.reason, Message: tc.runtime,
				TerminationLog: filepath.Join(dir, "message"), LogPath: filepath.Join(dir, "0.log"),
				Annotations: map[string]string{cri.TerminationMessagePolicyAnnotation: tc.policy},
			}
			for path, content := range map[string]string{cs.TerminationLog: tc.file, cs.LogPath: tc.log} {
				if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			m := &messages{files: podFiles{safepath.Root(root)}, texts: map[pod.ContainerID]string{}}
			s := &pod.Status{Containers: []pod.ContainerStatus{cs}}
			got := m.with(t.Context(), s).Containers[0].Message
			if want := tc.want; got != want && (want != "" || got != tc.runtime) {
				t.Errorf("got %d bytes %.100q, want %d bytes %.100q", len(got), got, len(want), want)
			}
			if s.Containers[0].Message != tc.runtime {
				t.Error("the observation was changed")
			}
			if err := os.Remove(cs.TerminationLog); err != nil {
				t.Fatal(err)
			}
			if again := m.with(t.Context(), s).Containers[0].Message; again != got {
				t.Errorf("read again: got %.100q", again)
			}
		})
	}
}

// A container that runs has no message yet, and each incarnation has a file of its own.
func TestTerminationLogOfEachIncarnation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.fake.Programs.Set("a", critest.ExitsAfter(time.Minute, 1))
		p := podOf(v1.RestartPolicyAlways, "a")
		p.Spec.Containers[0].TerminationMessagePath = "/dev/termination-log"
		b.run(p)
		first := b.observe().FindContainer("a").TerminationLog
		if st, err := os.Stat(first); err != nil || st.Mode().Perm() != 0o666 || st.Size() != 0 {
			t.Fatalf("got %v, %v, want an empty file that anybody may write to", st, err)
		}
		if err := os.WriteFile(first, []byte("it broke"), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := b.WithTerminationMessages(t.Context(), b.observe()).Containers[0].Message; got != "" {
			t.Errorf("got %q of a running container", got)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		b.sync(p)
		s := b.WithTerminationMessages(t.Context(), b.observe())
		if len(s.Containers) != 2 || s.Containers[0].TerminationLog == first || s.Containers[1].Message != "it broke" {
			t.Errorf("got %+v", s.Containers)
		}
	})
}
