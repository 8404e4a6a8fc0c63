//go:build e2e && podshim

package podshim

import (
	"os"
	"slices"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// without takes away lines that begin with one of these.
func without(text string, begin ...string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		if !slices.ContainsFunc(begin, func(b string) bool { return strings.HasPrefix(line, b) }) {
			out.WriteString(line)
		}
	}
	return out.String()
}

// wantSameWords compares what the containers of a pair have written, which all must have.
func (r *rig) wantSameWords(name string, pair map[string]string, all ...string) {
	r.Helper()
	text := map[string]string{}
	for h, id := range pair {
		r.exits(id)
		text[h] = without(r.said(name+"-"+h, "c"), owned...)
	}
	if text["podshim"] != text["stock"] {
		r.Errorf("%s: with stock shims\n%s\nand with pod shims\n%s", name, text["stock"], text["podshim"])
	}
	for _, want := range all {
		if !strings.Contains(text["podshim"], want) {
			r.Errorf("%s: no %q in\n%s", name, want, text["podshim"])
		}
	}
}

// Limits of processes and sysctls are those of stock shims.
func TestRlimitsAndSysctlsAreAsWithStockShims(t *testing.T) {
	r := newRig(t)
	nothing := func(*cri.PodSandboxConfig) {}
	const limits = "/proc/self/limits"
	// The program changes its limit of files itself: the specification's are beside it.
	r.wantSameWords("limits", r.pairOf("limits", "-based", nothing, func(c *cri.ContainerConfig) {
		c.Linux.SecurityContext.RunAsUser = &cri.Int64Value{Value: 1000}
	}, "read", limits), "Max core file size        0                    0", "Max processes             300                  400",
		"Max pending signals       1                    2", "Max stack size            4194304              1073741824")
	r.wantSameWords("default", r.pair("default", func(*cri.ContainerConfig) {}, "read", limits))
	execs := r.pairOf("execs", "-based", nothing, func(*cri.ContainerConfig) {}, "sleep")
	if k, s := r.execSync(execs["podshim"], 0, "/payload", "read", limits), r.execSync(execs["stock"], 0, "/payload", "read", limits); k != s || k.Code != 0 {
		t.Errorf("execs: with stock shims\n%+v\nand with pod shims\n%+v", s, k)
	}

	sysctls := map[string]string{
		"net.ipv4.ip_forward": "1", "net/ipv4/ip_local_port_range": "1024 2000", "net.ipv4.ping_group_range": "0 7", "kernel.shm_rmid_forced": "1", "kernel.msgmax": "1234",
		"fs.mqueue.msg_max": "77", "net.ipv4.ip_unprivileged_port_start": "5",
	}
	files := []string{"read", "/proc/sys/net/ipv4/tcp_syncookies"}
	before := map[string]string{}
	for name := range sysctls {
		f := "/proc/sys/" + strings.ReplaceAll(name, ".", "/")
		b, err := os.ReadFile(f)
		r.must(err)
		files, before[f] = append(files, f), string(b)
	}
	r.wantSameWords("sysctls", r.pairOf("sysctls", "", func(p *cri.PodSandboxConfig) { p.Linux.Sysctls = sysctls }, func(*cri.ContainerConfig) {}, files...),
		"ip_forward: 1\n", "ip_local_port_range: 1024\t2000\n", "msgmax: 1234\n", "msg_max: 77\n", "shm_rmid_forced: 1\n")
	for f, want := range before {
		if b, err := os.ReadFile(f); err != nil || string(b) != want {
			t.Errorf("%s of the host is %s, was %s (%v)", f, b, want, err)
		}
	}
}
