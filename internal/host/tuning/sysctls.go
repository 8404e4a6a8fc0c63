package tuning

import (
	"errors"
	"fmt"
)

// sysctl is a kernel setting.
type sysctl struct {
	name string
	want int
}

// needed are the settings that pods need, in the order in which they are reported.
var needed = []sysctl{
	{"vm.overcommit_memory", 1},             // do not refuse memory that cgroups limit
	{"vm.panic_on_oom", 0},                  // the OOM killer kills a process, not the machine
	{"kernel.panic", 10},                    // reboot 10 s after a panic
	{"kernel.panic_on_oops", 1},             // panic on an oops
	{"kernel.keys.root_maxkeys", 1000000},   // each container has a session key of root's
	{"kernel.keys.root_maxbytes", 25000000}, // 25 bytes for each
}

// difference is a setting with a wrong value.
type difference struct {
	sysctl
	is  int
	err error // of reading it
}

// compare returns the settings with wrong values.
func compare(want []sysctl, read func(name string) (int, error)) []difference {
	var out []difference
	for _, s := range want {
		is, err := read(s.name)
		if err != nil || is != s.want {
			out = append(out, difference{sysctl: s, is: is, err: err})
		}
	}
	return out
}

func (d difference) change() string {
	if d.err != nil {
		return fmt.Sprintf("%s to %d", d.name, d.want)
	}
	return fmt.Sprintf("%s from %d to %d", d.name, d.is, d.want)
}

// demand converts the differences into an error that names the remedy.
func demand(wrong []difference) error {
	var errs []error
	for _, d := range wrong {
		const field = "protectKernelDefaults: the kernel setting"
		if d.err != nil {
			errs = append(errs, fmt.Errorf("%s %s must be %d, and cannot be read: %w", field, d.name, d.want, d.err))
			continue
		}
		errs = append(errs, fmt.Errorf("%s %s is %d, and must be %d: set it (sysctl -w %s=%d, and in /etc/sysctl.d for the next boot), "+
			"or set protectKernelDefaults: false for the agent to do it", field, d.name, d.is, d.want, d.name, d.want))
	}
	return errors.Join(errs...)
}
