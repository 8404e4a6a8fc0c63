//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// look is a script that writes down what a process of the container sees of its world.
const look = `
{
echo "== hostname"; hostname
echo "== resolv.conf"; cat /etc/resolv.conf
echo "== hosts"; cat /etc/hosts
echo "== status"; cat /proc/self/status
echo "== uid_map"; cat /proc/self/uid_map
for ns in net pid ipc uts user; do echo "== ns $ns"; readlink /proc/self/ns/$ns; done
echo "== interrupts"; stat -c "%F" /proc/interrupts
echo "== root"; touch /written 2>&1 && echo writable
echo "== sysctl net"; cat /proc/sys/net/ipv4/ip_unprivileged_port_start
echo "== sysctl ipc"; cat /proc/sys/kernel/shm_rmid_forced
echo "== owner"; stat -c "%u %g" /shared
echo "== processes"; for p in /proc/[0-9]*; do cat $p/cmdline | tr '\0' ' '; echo; done
} > /shared/.$me.world 2>/shared/$me.errors
mv /shared/.$me.world /shared/$me.world
say looked
`

// world is what a container has seen: sections by their names, as texts without the last line's
// end.
type world map[string]string

// worldOf waits until the container of the pod has looked, and returns what it saw.
func (n *node) worldOf(pod, container string) world {
	n.t.Helper()
	n.awaitStory(pod, container+" looked")
	text, err := os.ReadFile(filepath.Join(n.stage(pod), container+".world"))
	if err != nil {
		n.t.Fatal(err)
	}
	w := world{}
	for _, section := range strings.Split(string(text), "== ")[1:] {
		name, content, _ := strings.Cut(section, "\n")
		w[name] = strings.TrimSuffix(content, "\n")
	}
	return w
}

// status is a line of /proc/self/status, its fields with single blanks between.
func (w world) status(key string) string {
	for line := range strings.Lines(w["status"]) {
		if value, ok := strings.CutPrefix(line, key+":"); ok {
			return strings.Join(strings.Fields(value), " ")
		}
	}
	return ""
}

// want checks a section.
func (w world) want(t *testing.T, section, want string) {
	t.Helper()
	if w[section] != want {
		t.Errorf("%s: got %q, want %q", section, w[section], want)
	}
}

// wantStatus checks a line of /proc/self/status.
func (w world) wantStatus(t *testing.T, key, want string) {
	t.Helper()
	if got := w.status(key); got != want {
		t.Errorf("%s: got %q, want %q", key, got, want)
	}
}

// looker makes a pod of one container, main, that looks and stays. Every user may write into its
// stage.
func (n *node) looker(name string, change func(*v1.Pod, *v1.Container)) *v1.Pod {
	n.t.Helper()
	p := n.act(name, v1.RestartPolicyAlways, nil, actor("main", look+"stay\n"))
	p.Spec.TerminationGracePeriodSeconds = ptr.To[int64](5)
	if err := os.Chmod(n.stage(name), 0o777); err != nil {
		n.t.Fatal(err)
	}
	change(p, &p.Spec.Containers[0])
	return p
}

// namespace returns the test's own namespace of a kind, which is the host's.
func namespace(t *testing.T, kind string) string {
	t.Helper()
	// Not /proc/self, which is the process's first thread: another test may have left that in a
	// namespace of its own.
	ns, err := os.Readlink("/proc/thread-self/ns/" + kind)
	if err != nil {
		t.Fatal(err)
	}
	return ns
}
