//go:build e2e

package e2e

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCopyFiles(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.write("tools.yaml", strings.ReplaceAll(toolsPod, "    args:", "    env: [{name: PATH, value: /usr/bin}]\n    args:"))
	n.write("bare.yaml", manifest("bare", "serve", "-port", "8081"))
	n.start()
	n.awaitReady("tools", "bare")
	here := n.place.Dir + "/files"
	for _, dir := range []string{here + "/site/deep/er", here + "/site/empty"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}

	// A hundred megabytes, there and back.
	large, err := os.Create(here + "/large")
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.New()
	if _, err := io.Copy(io.MultiWriter(large, sum), io.LimitReader(rand.Reader, 100<<20)); err != nil {
		t.Fatal(err)
	}
	if err := large.Close(); err != nil {
		t.Fatal(err)
	}
	want := sum.Sum(nil)
	n.berth("cp", here+"/large", "tools:/large")
	n.berth("cp", "default/tools:/large", here+"/back", "-c", "main")
	back, err := os.Open(here + "/back")
	if err != nil {
		t.Fatal(err)
	}
	defer back.Close()
	sum.Reset()
	if size, err := io.Copy(sum, back); err != nil || size != 100<<20 || !bytes.Equal(sum.Sum(nil), want) {
		t.Errorf("%d bytes came back, error %v, and they differ: %v", size, err, !bytes.Equal(sum.Sum(nil), want))
	}

	// A folder with links, into a folder that is there; permissions are kept.
	if err := os.WriteFile(here+"/site/deep/er/run", []byte("ran"), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("er/run", here+"/site/deep/link"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", here+"/site/out"); err != nil {
		t.Fatal(err)
	}
	if got := n.execIn("", "tools", "--", "mkdir", "/srv"); got.code != 0 {
		t.Fatal(got)
	}
	n.berth("cp", here+"/site", "tools:/srv")
	if got := n.execIn("", "tools", "--", "sh", "-c", "cat /srv/site/deep/link; stat -c %a /srv/site/deep/er/run; readlink /srv/site/out; ls -d /srv/site/empty"); got.out != "ran750\n/etc/passwd\n/srv/site/empty\n" {
		t.Errorf("in the container: %v", got)
	}
	got := n.command(n.ctx, "cp", "tools:/srv/site", here+"/again")
	if got.code != 0 {
		t.Fatal(got)
	}
	wantText(t, "the warning", got.errOut, `warning: skipping symlink: `, ` -> "/etc/passwd"`)
	if text, err := os.ReadFile(here + "/again/deep/er/run"); err != nil || string(text) != "ran" {
		t.Errorf("got %q, %v", text, err)
	}
	if exists(t, here+"/again/out") || !exists(t, here+"/again/empty") {
		names, err := filepath.Glob(here + "/again/*")
		t.Errorf("there are %v, %v", names, err)
	}

	// A container without tar says so, in both directions.
	for _, args := range [][]string{{"cp", "bare:/hello", here + "/hello"}, {"cp", here + "/large", "bare:/large"}} {
		if got := n.command(n.ctx, args...); got.code == 0 || !strings.Contains(got.errOut, `"tar": executable file not found in $PATH`) {
			t.Errorf("%v: %v", args, got)
		}
	}
}
