//go:build e2e

package e2e

import (
	"bytes"
	"errors"
	"os/exec"
	"strings"
	"testing"
)

// shellPod is a pod whose own program is a shell, at a terminal or not.
func shellPod(name, console, script string) string {
	pod := strings.ReplaceAll(toolsPod, "name: tools", "name: "+name)
	pod = strings.ReplaceAll(pod, "spec:\n", "spec:\n  terminationGracePeriodSeconds: 1\n") // a shell does not end when it is asked to
	return strings.ReplaceAll(pod, `    args: ["serve", "-port", "8080"]`, "    "+console+"\n    command: [/usr/bin/sh, "+script+"]")
}

// A person sits down at a container's own terminal, leaves it, and comes back; the program goes on
// meanwhile.
func TestAttachOnTerminal(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.write("shell.yaml", shellPod("shell", "stdin: true\n    tty: true", "-i"))
	n.start()
	before := n.awaitReady("shell").named("shell")

	sh := n.onTerminal("attach", "-it", "shell")
	sh.await("If you don't see a command prompt, try pressing enter.")
	sh.say(`until [ "$(/usr/bin/stty size)" = "27 91" ]; do :; done; kept=va""lue; /usr/bin/echo si""zed` + "\n")
	sh.await("sized")
	must(t, sh.cmd.Process.Kill()) // as kubectl has no keys to leave by
	sh.wait()

	sh = n.onTerminal("attach", "-it", "shell")
	sh.await("try pressing enter.")
	sh.say(`/usr/bin/echo "the $kept"` + "\n")
	sh.await("the value")
	if now := n.awaitReady("shell").named("shell"); containerID(now, "main") != containerID(before, "main") {
		t.Error("the container was replaced though its program was only left")
	}
	sh.say("exit 5\n")
	sh.await("Session ended, resume using 'kubectl attach shell -c main -n default -i -t' command")
	if code := sh.wait(); code != 0 {
		t.Errorf("exit code %d of a session that the program ended", code)
	}
}

// Without a terminal, what the program writes is written, each stream to its own; and what we
// write, it reads.
func TestAttach(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.write("lines.yaml", shellPod("lines", "stdin: true", `-c, "while read line; do /usr/bin/echo got $line; /usr/bin/echo lost $line >&2; done"`))
	n.start()
	n.awaitReady("lines")
	cmd := exec.CommandContext(n.ctx, n.binary, "attach", "--run-dir", n.place.Run, "-i", "lines")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	watcher := n.follow("attach", "lines")
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// A program that is attached to shows nothing of that, so lines are sent until one comes back.
	seen := make(chan error, 1)
	go func() {
		b := make([]byte, 4096)
		count, err := out.Read(b)
		if err == nil && !strings.HasPrefix(string(b[:count]), "got one\n") {
			err = errors.New(string(b[:count]))
		}
		seen <- err
	}()
	until(t, "both to show what the program writes", func() bool {
		if _, err := in.Write([]byte("one\n")); err != nil {
			t.Fatal(err)
		}
		return strings.Contains(readText(t, watcher.out), "got one\n") && strings.Contains(readText(t, watcher.out), "lost one\n")
	})
	if err := <-seen; err != nil {
		t.Error(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	wantText(t, "standard error", errOut.String(), "lost one\n")

	// The session of a container that ends is over, and that is no error.
	n.remove("lines.yaml")
	watcher.wait()
	if code := watcher.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("exit code %d after the program's end:\n%s", code, readText(t, watcher.out))
	}
}
