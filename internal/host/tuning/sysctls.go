package tuning

import (
	"errors"
	"fmt"
)

// sysctl is a setting of the kernel.
type sysctl struct {
	name string
	want int
}

// needed are the settings that pods need, in the order in which they are told.
var needed = []sysctl{
	{"vm.overcommit_memory", 1},             // what memory cgroups limit is not refused before
	{"vm.panic_on_oom", 0},                  // the OOM killer ends a process, not the machine
	{"kernel.panic", 10},                    // a kernel that is lost starts again, after 10 s
	{"kernel.panic_on_oops", 1},             // and does not go on half broken
	{"kernel.keys.root_maxkeys", 1000000},   // each container has a session key of root's
	{"kernel.keys.root_maxbytes", 25000000}, // 25 bytes for each
}

// difference is a setting that is not what it should be.
type difference struct {
	sysctl
	is  int
	err error // it cannot be read
}

// compare returns what differs.
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

// change tells that the setting was changed.
func (d difference) change() string {
	if d.err != nil {
		return fmt.Sprintf("%s to %d", d.name, d.want)
	}
	return fmt.Sprintf("%s from %d to %d", d.name, d.is, d.want)
}

// demand makes the differences an error that names the fix.
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
