package crispec

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// A quarter of the stack counts, within the kernel's bounds.
func TestHostExecLimits(t *testing.T) {
	for stack, want := range map[uint64]int{0: 6 << 20, 1: 128 << 10, 8 << 20: 2 << 20, 1 << 40: 6 << 20, ^uint64(0): 6 << 20} {
		if got := HostExecLimits(4096, stack); got != (ExecLimits{String: 128 << 10, Total: want}) {
			t.Errorf("stack of %d bytes: %+v, want a total of %d", stack, got, want)
		}
	}
}

// What the kernel would not take is told before the container is made.
func TestExecLimits(t *testing.T) {
	limits := ExecLimits{String: 128 << 10, Total: 2 << 20}
	variables := func(count, size int) []v1.EnvVar {
		var env []v1.EnvVar
		for i := range count {
			env = append(env, v1.EnvVar{Name: fmt.Sprintf("V%02d", i), Value: strings.Repeat("x", size)})
		}
		return env
	}
	for name, tt := range map[string]struct {
		limits ExecLimits
		env    []v1.EnvVar
		args   []string
		err    string
	}{
		"nothing":             {limits: limits},
		"just fits":           {limits: limits, env: variables(1, 128<<10-len("V00=")-1), args: []string{strings.Repeat("x", 128<<10-1)}},
		"variable":            {limits: limits, env: variables(1, 128<<10-len("V00=")), err: "env: variable V00, with its name, takes 131073 bytes, of which the kernel takes 131072 at most: "},
		"argument":            {limits: limits, args: []string{"a", strings.Repeat("x", 128<<10)}, err: "args[1] takes 131073 bytes, "},
		"all together":        {limits: limits, env: variables(20, 120_000), err: "command, args and env take 2400260 bytes together, of which the kernel takes 2097152 at most "},
		"all together fit":    {limits: limits, env: variables(17, 120_000)},
		"limits not known":    {env: variables(20, 200_000)},
		"pointers count, too": {limits: ExecLimits{Total: 27}, args: []string{"", "", ""}},
		"and no byte more":    {limits: ExecLimits{Total: 27}, args: []string{"", "", "x"}, err: "command, args and env take 28 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPod(func(p *v1.Pod) { p.Spec.Containers[0].Env, p.Spec.Containers[0].Args = tt.env, tt.args })
			_, err := ContainerConfig(Container{Pod: p, Container: &p.Spec.Containers[0], Node: NodeSettings{ExecLimits: tt.limits}})
			switch {
			case tt.err == "" && err != nil:
				t.Error(err)
			case tt.err != "" && (err == nil || !strings.HasPrefix(err.Error(), tt.err)):
				t.Errorf("got %v, want %s…", err, tt.err)
			}
		})
	}
}
