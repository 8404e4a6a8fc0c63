//go:build e2e

package e2e

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"testing"
	"time"
)

// Connections that show nothing, more than the agent may have files, leave it files for its own
// work: a pod starts, and who has a certificate gets in.
func TestClusterSilentConnections(t *testing.T) {
	const files, silent = 1024, 2000
	c := newCluster(t)
	berth, few := c.binary, c.place.Dir+"/few-files"
	if err := os.WriteFile(few, fmt.Appendf(nil, "#!/bin/sh\nulimit -n %d && exec %q \"$@\"\n", files, berth), 0o700); err != nil {
		t.Fatal(err)
	}
	c.binary = few
	a := c.startMember()
	c.binary = berth
	address := fmt.Sprintf("127.0.0.1:%d", c.port)
	for range silent {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	admin, answered := c.certificateOf("admin"), make(chan struct{})
	go func() {
		defer close(answered)
		if code, body := c.ask(admin, "https://"+address+"/pods"); code != http.StatusOK {
			t.Errorf("with a certificate: %d %s", code, body)
		}
	}()
	for most := 0; ; {
		open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", a.cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		most = max(most, len(open))
		select {
		case <-answered:
		case <-time.After(time.Millisecond):
			continue
		}
		if most > files/2 {
			t.Errorf("the agent had %d files open, of %d", most, files)
		}
		break
	}
	c.create(c.helloPod("web", "serve"))
	c.awaitAPIReady("web")
}
