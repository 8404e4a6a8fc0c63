//go:build e2e

package e2e

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// The bundle's containerd has its pods' network made and taken down without a program: that of its
// plugin is not run.
func TestNetworkWithoutAProgram(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start()
	program, calls := filepath.Join(bundleOf(n), "cni", "berth-cni"), n.place.Dir+"/calls"
	if err := os.Rename(program, program+".real"); err != nil {
		t.Fatal(err)
	}
	script := "#!/bin/sh\nenv >>" + calls + "\nexec \"$0.real\"\n"
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	port := strconv.Itoa(freePort(t))
	n.write("web.yaml", manifest("web", "serve")+"    ports: [{containerPort: 8080, hostPort: "+port+"}]\n")
	web := n.awaitReady("web").named("web")
	answers(t, "http://"+web.Status.PodIP+":8080/")
	answers(t, "http://127.0.0.1:"+port+"/")
	tr := n.traces(web)
	n.remove("web.yaml")
	n.awaitGone(web.UID)
	n.wantGone(tr)
	if said, err := os.ReadFile(calls); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the program was run, error %v:\n%s", err, said)
	}
}
