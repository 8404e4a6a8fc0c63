package shims

import (
	"errors"
	"maps"
	"strings"
	"testing"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/bundle/podshim/plan"
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
			err := validateSysctls(map[string]string{name: "1"}, n)
			var r *plan.FieldError
			if want == "" && err != nil || want != "" && (!errors.As(err, &r) || r.Field != "linux.sysctls["+name+"]" || !strings.Contains(r.Reason, want)) {
				t.Errorf("%s: %v, want %q", name, err, want)
			}
		}
	}
}

// A pod's own network namespace has containerd's defaults. The pod's values take precedence, in
// either notation.
func TestComputeSysctls(t *testing.T) {
	const port, ping = "net.ipv4.ip_unprivileged_port_start", "net.ipv4.ping_group_range"
	pods := &runtime.NamespaceOption{Network: runtime.NamespaceMode_POD}
	users := &runtime.NamespaceOption{Network: runtime.NamespaceMode_POD, UsernsOptions: &runtime.UserNamespace{Mode: runtime.NamespaceMode_POD}}
	hostUsers := &runtime.NamespaceOption{Network: runtime.NamespaceMode_POD, UsernsOptions: &runtime.UserNamespace{Mode: runtime.NamespaceMode_NODE}}
	host := &runtime.NamespaceOption{Network: runtime.NamespaceMode_NODE}
	for name, c := range map[string]struct {
		namespaces *runtime.NamespaceOption
		pod, want  map[string]string
	}{
		"none set":           {pods, nil, map[string]string{port: "0", ping: "0 2147483647"}},
		"another set":        {pods, map[string]string{"kernel.shmmax": "1"}, map[string]string{"kernel.shmmax": "1", port: "0", ping: "0 2147483647"}},
		"port set":           {pods, map[string]string{port: "81"}, map[string]string{port: "81", ping: "0 2147483647"}},
		"both set":           {pods, map[string]string{port: "81", ping: "1 0"}, map[string]string{port: "81", ping: "1 0"}},
		"with slashes":       {pods, map[string]string{"net/ipv4/ping_group_range": "1 0"}, map[string]string{port: "0", "net/ipv4/ping_group_range": "1 0"}},
		"user namespace":     {users, nil, map[string]string{port: "0"}},
		"host's users":       {hostUsers, nil, map[string]string{port: "0", ping: "0 2147483647"}},
		"host's network":     {host, nil, nil},
		"host, another set":  {host, map[string]string{"kernel.shmmax": "1"}, map[string]string{"kernel.shmmax": "1"}},
		"users and ping set": {users, map[string]string{ping: "0 1"}, map[string]string{port: "0", ping: "0 1"}},
	} {
		before := maps.Clone(c.pod)
		if got := computeSysctls(c.pod, c.namespaces); !maps.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
		if !maps.Equal(c.pod, before) {
			t.Errorf("%s: the pod's sysctls have changed to %v", name, c.pod)
		}
	}
}
