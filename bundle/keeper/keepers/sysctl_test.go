package keepers

import (
	"errors"
	"strings"
	"testing"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/bundle/keeper/plan"
)

func TestSysctls(t *testing.T) {
	pods := &runtime.NamespaceOption{Network: runtime.NamespaceMode_POD, Ipc: runtime.NamespaceMode_POD}
	host := &runtime.NamespaceOption{Network: runtime.NamespaceMode_NODE, Ipc: runtime.NamespaceMode_NODE}
	for name, c := range map[string]struct{ file, pod, host string }{
		"net.ipv4.ip_forward":               {"net/ipv4/ip_forward", "", "host's network namespace"},
		"net/ipv4/conf/eth0.1/rp_filter":    {"net/ipv4/conf/eth0.1/rp_filter", "", "host's network namespace"},
		"net.ipv4.conf.eth0/1.rp_filter":    {"net/ipv4/conf/eth0.1/rp_filter", "", "host's network namespace"},
		"kernel.shm_rmid_forced":            {"kernel/shm_rmid_forced", "", "host's IPC namespace"},
		"fs.mqueue.msg_max":                 {"fs/mqueue/msg_max", "", "host's IPC namespace"},
		"kernel.domainname":                 {"kernel/domainname", "", ""},
		"kernel.hostname":                   {"kernel/hostname", "whole machine", "whole machine"},
		"kernel.core_pattern":               {"kernel/core_pattern", "whole machine", "whole machine"},
		"kernel.shmmax ":                    {"kernel/shmmax ", "whole machine", "whole machine"},
		"vm.swappiness":                     {"vm/swappiness", "whole machine", "whole machine"},
		"net/../kernel/core_pattern":        {"net/../kernel/core_pattern", "not the name", "not the name"},
		"net.ipv4":                          {"net/ipv4", "", "host's network namespace"},
		"net..x":                            {"net//x", "not the name", "not the name"},
		"/net":                              {"/net", "not the name", "not the name"},
		"net.ipv4.//.//.kernel.core_patter": {"net/ipv4/../../kernel/core_patter", "not the name", "not the name"},
	} {
		if got := sysctlFile(name); got != c.file {
			t.Errorf("%s is the file %s, want %s", name, got, c.file)
		}
		for want, n := range map[string]*runtime.NamespaceOption{c.pod + " ": pods, c.host: host} {
			want = strings.TrimSuffix(want, " ")
			err := refuseSysctls(map[string]string{name: "1"}, n)
			var r *plan.Refused
			if want == "" && err != nil || want != "" && (!errors.As(err, &r) || r.Field != "linux.sysctls["+name+"]" || !strings.Contains(r.Why, want)) {
				t.Errorf("%s: %v, want %q", name, err, want)
			}
		}
	}
}
