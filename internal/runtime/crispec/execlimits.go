package crispec

import (
	"fmt"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ExecLimits are the kernel's limits for the start of a program, in bytes (execve(2), "Limits on
// size of arguments and environment"); 0 is unknown. A container that exceeds them exits with only
// an exit code, without an error message.
type ExecLimits struct {
	// String limits an argument, or a variable with its name, including the terminating null byte.
	String int
	// Total limits all arguments and variables, including null bytes and pointers.
	Total int
}

const (
	// execString is the limit of one argument or variable in pages (MAX_ARG_STRLEN).
	execString = 32
	// minExecTotal and maxExecTotal bound the total limit in bytes, which is a quarter of the stack
	// limit.
	minExecTotal, maxExecTotal = 128 << 10, 6 << 20
)

// HostExecLimits returns the limits of a kernel with this page size in bytes, for containers with a
// stack limit in bytes; 0 is unknown.
func HostExecLimits(pageSize int, stackLimit uint64) ExecLimits {
	limits := ExecLimits{String: execString * pageSize, Total: maxExecTotal}
	if stackLimit > 0 {
		limits.Total = int(max(minExecTotal, min(stackLimit/4, maxExecTotal)))
	}
	return limits
}

// pointerSize is what the kernel adds for each string.
const pointerSize = 8

// check returns an error if a container's arguments or variables exceed the limits. Those of its
// image, which are added, are not counted.
func (l ExecLimits) check(cfg *runtimeapi.ContainerConfig) error {
	total := 0
	add := func(what string, size int) error {
		size++ // the terminating null byte
		total += size + pointerSize
		if l.String > 0 && size > l.String {
			return fmt.Errorf("%s takes %d bytes, of which the kernel takes %d at most: show the value to the container as a file (a volume of a ConfigMap or Secret)",
				what, size, l.String)
		}
		return nil
	}
	for _, list := range []struct {
		field   string
		strings []string
	}{{"command", cfg.Command}, {"args", cfg.Args}} {
		for i, s := range list.strings {
			if err := add(fmt.Sprintf("%s[%d]", list.field, i), len(s)); err != nil {
				return err
			}
		}
	}
	for _, e := range cfg.Envs {
		if err := add(fmt.Sprintf("env: variable %s, with its name,", e.Key), len(e.Key)+len("=")+len(e.Value)); err != nil {
			return err
		}
	}
	if l.Total > 0 && total > l.Total {
		return fmt.Errorf("command, args and env take %d bytes together, of which the kernel takes %d at most (a quarter of the limit of the stack): "+
			"show large values to the container as files (a volume of a ConfigMap or Secret)", total, l.Total)
	}
	return nil
}
