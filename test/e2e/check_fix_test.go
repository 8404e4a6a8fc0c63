//go:build e2e

package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/host/preflight"
)

// fixing runs berth check --fix twice in a network without forwarding, and shows what became of it.
// The folders in which it keeps what it changed are the one that is mounted here.
const fixing = `
for dir in /etc/sysctl.d /etc/modules-load.d; do mount --bind "$KEPT" $dir; done
echo 0 >/proc/sys/net/ipv4/ip_forward
for time in first second; do
	"$BERTH" check --fix --output json --run-dir "$KEPT/none" --root-dir "$KEPT/none" >"$SAID/$time" || true # it fails for what else the machine lacks
done
cat /proc/sys/net/ipv4/ip_forward
`

// berth check --fix turns forwarding on where it is off, now and for each boot, says so, and finds
// nothing to do afterwards. It does so in namespaces of its own: the machine stays as it is.
func TestCheckFixTurnsForwardingOn(t *testing.T) {
	t.Parallel()
	kept, said := t.TempDir(), t.TempDir()
	cmd := exec.CommandContext(t.Context(), "sh", "-ec", fixing)
	cmd.Env = append(os.Environ(), "KEPT="+kept, "SAID="+said)
	cmd.SysProcAttr = &unix.SysProcAttr{Unshareflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET}
	out, err := cmd.CombinedOutput()
	if err != nil || string(out) != "1\n" {
		t.Fatalf("net.ipv4.ip_forward is %q at the end, want 1: %v", out, err)
	}
	text, err := os.ReadFile(filepath.Join(kept, "60-berth.conf"))
	if err != nil || !strings.Contains(string(text), "\nnet.ipv4.ip_forward = 1\n") {
		t.Errorf("kept for the next boot: %q, %v", text, err)
	}
	for time, want := range map[string][]string{"first": {"done", "ok"}, "second": {"ok"}} {
		b, err := os.ReadFile(filepath.Join(said, time))
		if err != nil {
			t.Fatal(err)
		}
		var checks []preflight.Check
		if err := json.Unmarshal(b, &checks); err != nil {
			t.Fatalf("%s time: %v: %s", time, err, b)
		}
		var got []string
		for _, c := range checks {
			if c.Name == "IPv4 forwarding" {
				got = append(got, string(c.Result))
			}
		}
		if strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("the %s time IPv4 forwarding is told as %q, want %q, in\n%s", time, got, want, b)
		}
	}
}
