//go:build e2e && vm

package e2e

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// What an agent logs as a service is found in the journal by its priority and its fields, and has
// the journal's time alone. So is why it does not start.
func TestVMJournal(t *testing.T) {
	needsSystemd(t)
	n := newNode(t)
	u := n.writeUnit("berth-journal.service", n.newAgent().cmd.Args...)
	t.Cleanup(u.remove)
	n.put(n.act("other", v1.RestartPolicyAlways, nil, actor("main", "stay\n")))
	u.command("start")
	n.awaitReady("other")
	before := n.containerd()
	n.killContainerd()
	const ended, started = "containerd ended; starting it again", "started containerd"
	var warnings string
	until(t, "the journal to warn of the runtime's end", func() bool {
		warnings = journalOf(t, u.name, "-p", "warning", "-o", "cat")
		return strings.Contains(warnings, ended)
	})
	if strings.Contains(warnings, started) {
		t.Errorf("what is no warning is one:\n%s", warnings)
	}
	found := map[string]map[string]any{}
	for line := range strings.Lines(journalOf(t, u.name, "-o", "json", fmt.Sprintf("PID=%d", before))) {
		var entry map[string]any
		must(t, json.Unmarshal([]byte(line), &entry))
		message := entry["MESSAGE"].(string)
		head, _, _ := strings.Cut(message, " pid=")
		found[head] = entry
		if entry["_TRANSPORT"] != "journal" || strings.Contains(message, "time=") || strings.Contains(message, "level=") {
			t.Errorf("an entry is %v", entry)
		}
	}
	if e := found[ended]; e == nil || e["PRIORITY"] != "4" || e["STATUS"] == "" || e["STATUS"] == nil {
		t.Errorf("the entry of the runtime's end is %v", e)
	}
	if e := found[started]; e == nil || e["PRIORITY"] != "6" || e["TOOK"] == nil {
		t.Errorf("the entry of the runtime's start is %v", e)
	}

	const refused = "berth-refused.service"
	if err := exec.Command("systemd-run", "--wait", "--unit", refused, n.binary, "run", "--max-pods", "0").Run(); err == nil {
		t.Error("a service with a wrong flag has started")
	}
	if said, want := journalOf(t, refused, "-p", "err", "-o", "cat", "_TRANSPORT=stdout"), "Error: --max-pods 0: must be 1 or more\n"; said != want {
		t.Errorf("why it does not start is told as %q, want %q", said, want)
	}
	systemctl(t, "reset-failed", refused)
	n.berth("stop", "--all")
}
