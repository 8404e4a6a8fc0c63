//go:build e2e && podshim

package podshim

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// tried is a system call that a container tries.
type tried struct {
	Name   string
	Number uint64
	Args   [6]uint64
}

// notAllowed are calls that the default profile has something to say of. They do nothing where they
// are allowed: their arguments make no sense. A 32-bit program sees the lower half of them, which
// for ptrace must not be 0: its parent would trace it then, and a stock shim takes the first signal
// for its end.
func notAllowed() []tried {
	all := []tried{{Name: "ptrace", Args: [6]uint64{1<<40 + 0x7000, 1 << 40}}}
	for _, name := range strings.Fields(`mount umount2 unshare keyctl add_key perf_event_open kexec_load init_module reboot swapon acct syslog quotactl
		fanotify_init chroot pivot_root personality getpid`) {
		all = append(all, tried{Name: name, Args: [6]uint64{1 << 40, 1 << 40, 1 << 40}})
	}
	for _, kind := range []uint64{0, 8, 0x20000, 0x20008, 0xffffffff, 0x40000} {
		all = append(all, tried{Name: "personality", Args: [6]uint64{kind}})
	}
	// A user namespace; what no kernel has; what a tracer says.
	all = append(all, tried{Name: "unshare", Args: [6]uint64{0x10000000}}, tried{Number: 900}, tried{Number: 0x7fffffff})
	if runtime.GOARCH == "amd64" {
		all = append(all, tried{Number: 0x40000000 + 39}, tried{Number: 0x40000000 + 900}, tried{Number: 0x40000000 + 520, Args: [6]uint64{1, 1, 1}})
	}
	return all
}

// byArguments is a profile of rules that look at arguments, and calls for each.
func byArguments() (string, []tried) {
	type object = map[string]any
	var rules []object
	var all []tried
	values := []uint64{0, 1, 2, 5, 6, 7, 0x7fffffff, 0x80000000, 0xffffffff, 1 << 32, 1<<32 + 5, 1<<32 + 6, 1<<32 + 7, 1<<63 + 6, 1<<64 - 1}
	add := func(name string, errno int, args ...object) {
		rules = append(rules, object{"names": []string{name, "no_such_call"}, "action": "SCMP_ACT_ERRNO", "errnoRet": errno, "args": args})
		for _, v := range values {
			for _, w := range []uint64{0, 6, 1 << 32} {
				all = append(all, tried{Name: name, Args: [6]uint64{v, w, v, w, v, w}})
			}
		}
	}
	arg := func(index int, op string, value, two uint64) object {
		return object{"index": index, "op": "SCMP_CMP_" + op, "value": value, "valueTwo": two}
	}
	add("getppid", 31, arg(0, "NE", 1<<32+6, 0), arg(1, "EQ", 6, 0))
	add("getuid", 32, arg(0, "LT", 1<<32+6, 0), arg(5, "EQ", 0, 0))
	add("geteuid", 33, arg(2, "LE", 1<<32+6, 0))
	add("getgid", 34, arg(4, "GE", 1<<32+6, 0))
	add("getegid", 35, arg(0, "GT", 1<<32+6, 0))
	add("gettid", 36, arg(0, "MASKED_EQ", 1<<32+3, 1<<32+2))
	add("gettid", 36, arg(0, "MASKED_EQ", 0x80000000, 0xffffffff))
	add("sched_yield", 37, arg(0, "GE", 5, 0), arg(0, "LE", 1, 0)) // one of them, as both are of one argument
	rules = append(rules, object{"names": []string{"acct"}, "action": "SCMP_ACT_ERRNO"}, object{"names": []string{"swapon"}, "action": "SCMP_ACT_LOG"},
		object{"names": []string{"reboot"}, "action": "SCMP_ACT_TRACE", "errnoRet": 5}, object{"names": []string{"syslog"}, "action": "SCMP_ACT_KILL_PROCESS"})
	b, err := json.Marshal(object{
		"defaultAction": "SCMP_ACT_ALLOW", "architectures": []string{"SCMP_ARCH_X86_64", "SCMP_ARCH_X86"}, "flags": []string{"SECCOMP_FILTER_FLAG_LOG"}, "syscalls": rules,
	})
	if err != nil {
		panic(err)
	}
	return string(b), append(all, tried{Name: "acct", Args: [6]uint64{1 << 40}}, tried{Name: "swapon", Args: [6]uint64{1 << 40}}, tried{Name: "reboot"})
}

// said is what a container has written to its log, without the times.
func (r *rig) said(pod, name string) string {
	r.Helper()
	b, err := os.ReadFile(r.logFile(pod, name))
	r.must(err)
	var out strings.Builder
	for line := range strings.Lines(string(b)) {
		if f := strings.SplitN(line, " ", 4); len(f) == 4 {
			out.WriteString(f[3])
		}
	}
	return out.String()
}

// wantSame runs a container by each handler, and the same as an exec in it, and compares what they
// write and how they end. What is written is returned.
func (r *rig) wantSame(name string, change func(*cri.ContainerConfig), args ...string) string {
	r.Helper()
	code, text := map[string]int32{}, map[string]string{}
	for h, id := range r.pair(name, func(c *cri.ContainerConfig) { change(c); c.Command = args }) {
		code[h] = r.exits(id).ExitCode
		text[h] = r.said(name+"-"+h, "c")
	}
	if code["podshim"] != code["stock"] || text["podshim"] != text["stock"] {
		r.Errorf("%s: with stock shims it ended with %d and wrote\n%s\nand with pod shims with %d:\n%s", name, code["stock"], text["stock"], code["podshim"], text["podshim"])
	}
	execs := map[string]outcome{}
	for h, id := range r.pair(name+"-exec", func(c *cri.ContainerConfig) { change(c); c.Command = []string{"/payload", "sleep"} }) {
		execs[h] = r.execSync(id, 0, args...)
	}
	if execs["podshim"] != execs["stock"] {
		r.Errorf("%s, as exec: with stock shims\n%+v\nand with pod shims\n%+v", name, execs["stock"], execs["podshim"])
	}
	if execs["podshim"].Out != text["podshim"] {
		r.Errorf("%s: the container wrote\n%s\nand the exec in it\n%s", name, text["podshim"], execs["podshim"].Out)
	}
	return text["podshim"]
}

// A profile does the same with pod shims as with stock shims.
func TestSeccompIsAsWithStockShims(t *testing.T) {
	r := newRig(t)
	asJSON := func(list []tried) string {
		b, err := json.Marshal(list)
		r.must(err)
		return string(b)
	}
	programs := map[string]string{"64": "/payload"}
	if runtime.GOARCH == "amd64" {
		programs["32"] = "/payload386"
	}
	runtimeDefault := &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault}
	profile, rules := byArguments()
	r.must(os.WriteFile(r.path("profile.json"), []byte(profile), 0o600))
	local := &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Localhost, LocalhostRef: r.path("profile.json")}
	for bits, program := range programs {
		for i, change := range []func(*cri.LinuxContainerSecurityContext){
			func(*cri.LinuxContainerSecurityContext) {},
			func(s *cri.LinuxContainerSecurityContext) { s.NoNewPrivs = true },
			func(s *cri.LinuxContainerSecurityContext) {
				s.RunAsUser, s.RunAsGroup = &cri.Int64Value{Value: 1000}, &cri.Int64Value{Value: 2000}
			},
			func(s *cri.LinuxContainerSecurityContext) {
				s.Capabilities = &cri.Capability{AddCapabilities: []string{"SYS_ADMIN", "SYS_PTRACE", "SYS_CHROOT"}}
			},
			func(s *cri.LinuxContainerSecurityContext) {
				s.Capabilities, s.NoNewPrivs = &cri.Capability{DropCapabilities: []string{"ALL"}}, true
				s.RunAsUser = &cri.Int64Value{Value: 1000}
			},
		} {
			said := r.wantSame(fmt.Sprintf("default-%s-%d", bits, i), func(c *cri.ContainerConfig) {
				c.Linux.SecurityContext.Seccomp = runtimeDefault
				change(c.Linux.SecurityContext)
			}, program, "calls", asJSON(notAllowed()))
			if !strings.Contains(said, "Seccomp:\t2\nSeccomp_filters:\t1\n") {
				r.Errorf("no filter, or more than one:\n%s", said)
			}
		}
		list := rules
		if bits == "32" { // an argument has no upper half
			for i := range list {
				for k, v := range list[i].Args {
					list[i].Args[k] = uint64(uint32(v))
				}
			}
		}
		r.wantSame("local-"+bits, func(c *cri.ContainerConfig) { c.Linux.SecurityContext.Seccomp = local }, program, "calls", asJSON(list))
		r.wantSame("killed-"+bits, func(c *cri.ContainerConfig) { c.Linux.SecurityContext.Seccomp = local }, program, "calls", asJSON([]tried{{Name: "syslog"}}))
	}
	for name, text := range map[string]string{
		"errno":  `{"architectures":["SCMP_ARCH_X32"],"defaultAction":"SCMP_ACT_ALLOW","defaultErrnoRet":38,"syscalls":[{"names":["getppid","clone3"],"action":"SCMP_ACT_ERRNO","errnoRet":0}]}`,
		"flags":  `{"architectures":["SCMP_ARCH_X32"],"defaultAction":"SCMP_ACT_ALLOW","flags":[],"syscalls":[{"names":["getppid"],"action":"SCMP_ACT_ERRNO"},{"names":["getppid"],"action":"SCMP_ACT_ERRNO","errnoRet":7,"args":[{"index":0,"value":0,"op":"SCMP_CMP_EQ"}]}]}`,
		"nofork": `{"architectures":["SCMP_ARCH_X32"],"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["setsid","sendmsg"],"action":"SCMP_ACT_ERRNO","errnoRet":13}]}`,
	} {
		r.must(os.WriteFile(r.path(name+".json"), []byte(text), 0o600))
		r.wantSame(name, func(c *cri.ContainerConfig) {
			c.Linux.SecurityContext.Seccomp = &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Localhost, LocalhostRef: r.path(name + ".json")}
			c.Linux.SecurityContext.NoNewPrivs = true
		}, "/payload", "calls", asJSON(append(notAllowed(), tried{Name: "getppid"}, tried{Name: "getppid", Args: [6]uint64{1}})))
	}
}

// A container or an exec that has its parent, the pod shim, trace it has not ended when it stops.
func TestATracedProcessHasNotEnded(t *testing.T) {
	r := newRig(t)
	pod, id := r.runs("traced", "traced", "3")
	if s := r.exits(id); s.ExitCode != 3 || r.said("traced", "c") != "bye\n" {
		t.Errorf("ended with %d, having written %q", s.ExitCode, r.said("traced", "c"))
	}
	id, err := r.container(pod, containerConfig(r, "traced", "d", "sleep"), func() {})
	r.must(err)
	if got := r.execSync(id, 0, "/payload", "traced", "4"); got != (outcome{"bye\n", "", 4, ""}) {
		t.Errorf("exec: %+v", got)
	}
	r.must(r.remove(pod))
	r.wantNothingLeft()
}

// A container that may trace others sees no exec that has more rights than the container, or no
// filter, or a file of the host.
func TestNoExecIsWorthTracing(t *testing.T) {
	r := newRig(t)
	pod, err := r.pod("hunts")
	r.must(err)
	for _, noNew := range []bool{false, true} {
		c := containerConfig(r, "hunts", fmt.Sprintf("c-%t", noNew), "hunt", "4000")
		s := c.Linux.SecurityContext
		s.Seccomp, s.NoNewPrivs = &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault}, noNew
		s.Capabilities = &cri.Capability{AddCapabilities: []string{"SYS_PTRACE", "DAC_READ_SEARCH"}}
		id, err := r.container(pod, c, func() {})
		r.must(err)
		execs := 0
		for ; r.status(id).State == cri.ContainerState_CONTAINER_RUNNING; execs++ {
			r.execSync(id, 0, "/payload", "say", "x", "", "0")
		}
		if said := r.said("hunts", c.Metadata.Name); said != "seen: true\n" || execs < 5 {
			t.Errorf("no-new-privileges %t, %d execs: the container saw\n%s", noNew, execs, said)
		}
	}
	r.must(r.remove(pod))
	r.wantNothingLeft()
}
