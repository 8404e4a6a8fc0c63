//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/test/console"
)

// TestTutorial types the commands of the tutorial, as they stand there.
func TestTutorial(t *testing.T) {
	t.Parallel()
	newNode(t).types("../../docs/tutorial.md")
}

// TestReadme types the session that README shows. It runs alone: a port of the machine is in it.
func TestReadme(t *testing.T) {
	newNode(t).types("../../README.md")
}

// TestPrometheusHowto reads metrics at the socket, as the how-to says. It runs alone, too.
func TestPrometheusHowto(t *testing.T) {
	newNode(t).types("../../docs/howto/prometheus.md")
}

// types types those commands of the page that say that they are run by this test, at a shell in a
// folder beside the examples. The program berth has the folders of the node instead of the default
// ones.
func (n *node) types(page string) {
	n.t.Helper()
	blocks, err := console.Read(page)
	if err != nil {
		n.t.Fatal(err)
	}
	folder, programs := n.place.Dir+"/reader", n.place.Dir+"/programs"
	for _, dir := range []string{folder, programs} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			n.t.Fatal(err)
		}
	}
	examples, err := filepath.Abs("../../examples")
	if err == nil {
		err = os.Symlink(examples, folder+"/examples")
	}
	if err != nil {
		n.t.Fatal(err)
	}
	script := fmt.Sprintf(`#!/bin/sh
command=$1
shift
[ "$command" != run ] || set -- --root-dir %s --cgroup-root %s --pod-logs-dir %s --container-logs-dir %s "$@"
exec %s "$command" --run-dir %s "$@"
`, n.place.Root, n.place.Cgroup, n.podLogs(), n.logLinks(), n.binary, n.place.Run)
	if err := os.WriteFile(programs+"/berth", []byte(script), 0o755); err != nil {
		n.t.Fatal(err)
	}
	reader, err := console.Start(folder, "PATH="+programs+":"+os.Getenv("PATH"))
	if err != nil {
		n.t.Fatal(err)
	}
	reader.Patience = patience(30 * time.Second)
	typed := 0
	for _, b := range blocks {
		if b.RunBy != n.t.Name() {
			continue
		}
		typed++
		for i, line := range b.Text {
			b.Text[i] = strings.ReplaceAll(line, "/run/berth/", n.place.Run+"/")
		}
		if err := reader.Run(n.ctx, b); err != nil {
			n.t.Error(err)
			break
		}
	}
	if err := reader.Close(); err != nil {
		n.t.Errorf("the shell: %v", err)
	}
	if typed == 0 {
		n.t.Errorf("%s has no block for this test", page)
	}
}
