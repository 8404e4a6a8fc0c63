//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
)

// noise is n bytes that look like nothing and are the same each time.
func noise(n int64) io.Reader { return io.LimitReader(rand.NewChaCha8([32]byte{1}), n) }

// 100 MB go through kubectl exec to a program and back, and every byte is the same.
func TestClusterExecPipe(t *testing.T) {
	t.Parallel()
	const size = 100 << 20
	c := newCluster(t)
	c.startMember()
	c.create(withTools(c.helloPod("web", "sleep")))
	c.awaitAPIReady("web")
	sent, got := sha256.New(), sha256.New()
	var errOut bytes.Buffer
	cmd := c.kubectlCommand("exec", "-i", "web", "--", "/usr/bin/cat")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = io.TeeReader(noise(size), sent), got, &errOut
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s", err, errOut.String())
	}
	if !bytes.Equal(sent.Sum(nil), got.Sum(nil)) {
		t.Errorf("%x was sent and %x came back", sent.Sum(nil), got.Sum(nil))
	}
}

// A program at kubectl's terminal learns of its size, and of a new one.
func TestClusterExecResize(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.startMember()
	c.create(withTools(c.helloPod("web", "sleep")))
	c.awaitAPIReady("web")
	ours, theirs := openTerminal(t) // 100 columns and 30 lines
	untilSize := func(size string) string {
		return `until [ "$(/usr/bin/stty size)" = "` + size + `" ]; do /usr/bin/sleep 0.05; done; echo is ` + size + `; `
	}
	cmd := c.kubectlCommand("exec", "-it", "web", "--", "/usr/bin/sh", "-c", untilSize("30 100")+untilSize("25 80")+"exit 5")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs, theirs, theirs
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true, Setctty: true} // so that the kernel tells it of a new size
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := theirs.Close(); err != nil {
		t.Fatal(err)
	}
	seen := make(chan string)
	go func() {
		var all strings.Builder
		b := make([]byte, 4096)
		resized := false
		for {
			n, err := ours.Read(b)
			all.Write(b[:n])
			if !resized && strings.Contains(all.String(), "is 30 100") {
				resized = true
				err = errors.Join(err, unix.IoctlSetWinsize(int(ours.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 25, Col: 80}))
			}
			if err != nil { // EIO: nobody has the other end any more
				seen <- all.String()
				return
			}
		}
	}()
	err := cmd.Wait()
	said := <-seen
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 5 {
		t.Errorf("%v, want exit code 5\n%s", err, said)
	}
	wantText(t, "the program", said, "is 30 100\r\n", "is 25 80\r\n")
}

// kubectl attach speaks with a container's own process, to its end: nothing of the output is lost,
// whichever of two outputs ends first.
func TestClusterAttach(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.startMember()
	p := shell(c.helloPod("echo"), `echo ready; while read line; do echo "got $line"; [ "$line" != enough ] || exit 0; done`)
	p.Spec.Containers[0].Stdin = true
	p.Spec.RestartPolicy = v1.RestartPolicyNever
	first := p.Spec.Containers[0]
	for i := range 9 {
		first.Name = fmt.Sprint("echo-", i)
		p.Spec.Containers = append(p.Spec.Containers, first)
	}
	c.create(p)
	c.awaitAPIReady("echo")
	errs := make(chan error, len(p.Spec.Containers))
	for _, container := range p.Spec.Containers {
		go func() { errs <- c.speakWith("echo", container.Name) }()
	}
	for range p.Spec.Containers {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	c.awaitAPI("the pod to succeed", func(p pods) bool { return p.named("echo").Status.Phase == v1.PodSucceeded })
	for _, container := range p.Spec.Containers {
		wantText(t, "the log of "+container.Name, c.kubectl("logs", "echo", "-c", container.Name), "ready\n", "got hello\n", "got enough\n")
	}
}

// speakWith attaches kubectl to a container that answers each line, and returns when it has ended.
func (c *cluster) speakWith(pod, container string) error {
	input, say := io.Pipe()
	defer say.Close()
	out, err := os.CreateTemp(c.place.Dir, "attached-")
	if err != nil {
		return err
	}
	defer out.Close()
	cmd := c.kubectlCommand("attach", "-i", pod, "-c", container)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = input, out, out
	if err := cmd.Start(); err != nil {
		return err
	}
	for _, line := range []string{"hello", "enough"} {
		if _, err := io.WriteString(say, line+"\n"); err != nil {
			return err
		}
		answered := func() bool {
			b, err := os.ReadFile(out.Name())
			return err == nil && strings.Contains(string(b), "got "+line+"\n")
		}
		for end := time.Now().Add(patience(time.Minute)); !answered(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				b, err := os.ReadFile(out.Name())
				return fmt.Errorf("container %s did not answer %q: kubectl attach said %q (%v)", container, line, b, err)
			}
		}
	}
	if err := say.Close(); err != nil {
		return err
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("kubectl attach -c %s: %w", container, err)
	}
	return nil
}

// countServer reads from each connection a number and so many bytes, says that it has them, and
// then reads to the end. It answers to that too, after longer than containerd's own port-forward
// waits for it.
const countServer = `use IO::Socket::INET;
my $listener = IO::Socket::INET->new(LocalAddr => "127.0.0.1", LocalPort => 9000, Listen => 64, ReuseAddr => 1) or die "listen: $!";
$SIG{CHLD} = "IGNORE";
print STDERR "listening\n";
while (1) {
	my $c = $listener->accept or next;
	next if fork;
	my $n = <$c> + 0;
	read($c, my $b, $n) == $n or die "less than $n bytes";
	syswrite($c, "got $n\n");
	while (<$c>) { }
	sleep 3;
	syswrite($c, "bye\n");
	exit 0;
}
`

// countBytes sends so many bytes to a countServer, waits for middle, and returns when the server
// has said all.
func countBytes(address string, size int64, middle func() error) error {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience(time.Minute))); err != nil {
		return err
	}
	if _, err := io.Copy(conn, io.MultiReader(strings.NewReader(fmt.Sprintln(size)), noise(size))); err != nil {
		return err
	}
	in := bufio.NewReader(conn)
	answer, err := in.ReadString('\n')
	if want := fmt.Sprintf("got %d\n", size); err != nil || answer != want {
		return fmt.Errorf("the answer to %d bytes is %q: %v", size, answer, err)
	}
	if err := middle(); err != nil {
		return err
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		return err
	}
	if rest, err := io.ReadAll(in); err != nil || string(rest) != "bye\n" {
		return fmt.Errorf("a connection whose client has nothing more to send: %q, %v", rest, err)
	}
	return nil
}

// kubectl port-forward carries ten connections at once, and each goes on for as long as one of its
// ends has something to send.
func TestClusterPortForward(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.startMember()
	p := withTools(c.helloPod("count"))
	p.Spec.Containers[0].Command, p.Spec.Containers[0].Args = []string{"/usr/bin/perl", "-e", countServer}, nil
	c.create(p)
	c.awaitAPIReady("count")
	c.awaitKubectlLog("count", "listening")
	forward := c.followKubectl("port-forward", "pod/count", ":9000")
	const pattern = `Forwarding from (127\.0\.0\.1:\d+) -> 9000`
	forward.awaitText(pattern)
	address := regexp.MustCompile(pattern).FindStringSubmatch(readText(t, forward.out))[1]

	const connections = 10
	g, ctx := errgroup.WithContext(c.ctx)
	var open atomic.Int32
	all := make(chan struct{})
	for i := range connections {
		g.Go(func() error {
			return countBytes(address, int64(1+i)<<16, func() error {
				if open.Add(1) == connections {
					close(all)
				}
				select {
				case <-all:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			})
		})
	}
	if err := g.Wait(); err != nil {
		t.Errorf("%v\n%s", err, readText(t, forward.out))
	}
	if err := forward.cmd.Process.Signal(unix.SIGINT); err != nil {
		t.Fatal(err)
	}
	forward.wait()
}

// kubectl cp takes files and folders there and back.
func TestClusterCopy(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.startMember()
	p := withTools(c.helloPod("web", "sleep"))
	p.Spec.Containers[0].Env = []v1.EnvVar{{Name: "PATH", Value: "/usr/bin"}}
	c.create(p)
	c.awaitAPIReady("web")
	here := filepath.Join(c.place.Dir, "copied")
	for name, size := range map[string]int64{"a.bin": 3 << 20, "deep/er/b.bin": 5000, "empty": 0} {
		path := filepath.Join(here, name)
		b, err := io.ReadAll(noise(size))
		if err := errors.Join(err, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, b, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	c.kubectl("cp", here, "web:/there")
	c.kubectl("cp", "web:/there", here+"-back")
	c.kubectl("cp", "web:/there/a.bin", here+"-one")
	for back, name := range map[string]string{here + "-back/a.bin": "a.bin", here + "-back/deep/er/b.bin": "deep/er/b.bin", here + "-back/empty": "empty", here + "-one": "a.bin"} {
		if readText(t, back) != readText(t, filepath.Join(here, name)) {
			t.Errorf("%s came back as something else", name)
		}
	}
	c.kubectlIn("", "cp", "web:/nothing", here+"-nothing") // whether kubectl still says why is chance
	if _, err := os.Stat(here + "-nothing"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a copy of what is not there: %v", err)
	}
}

// kubectl logs --since-time leaves out what is older, --since only what is older than that.
func TestClusterLogsSince(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.startMember()
	c.create(c.helloPod("web", "serve"))
	web := c.awaitAPIReady("web").named("web")
	answers(t, "http://"+web.Status.PodIP+":8080/first")
	c.awaitKubectlLog("web", "GET /first")
	last, _, _ := strings.Cut(c.kubectl("logs", "web", "--timestamps", "--tail=1"), " ")
	first, err := time.Parse(time.RFC3339Nano, last)
	if err != nil {
		t.Fatal(err)
	}
	since := first.Truncate(time.Second).Add(time.Second) // the query has whole seconds
	until(t, "the next second", func() bool { return time.Now().After(since) })
	answers(t, "http://"+web.Status.PodIP+":8080/second")
	c.awaitKubectlLog("web", "GET /second")
	if got := c.kubectl("logs", "web", "--since-time="+since.UTC().Format(time.RFC3339)); strings.Contains(got, "GET /first") || !strings.Contains(got, "GET /second") {
		t.Errorf("kubectl logs --since-time has\n%s", got)
	}
	wantText(t, "kubectl logs --since=1h", c.kubectl("logs", "web", "--since=1h"), "GET /first", "GET /second")
}
