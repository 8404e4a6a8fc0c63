package crispec

import (
	"fmt"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ExecLimits are what the kernel takes at the start of a program, in bytes (execve(2), "Limits on
// size of arguments and environment"); 0 is not known. What exceeds them ends the container with an
// exit code alone: by then there is nobody left to say why.
type ExecLimits struct {
	// String bounds an argument, or a variable with its name, and its final zero.
	String int
	// Total bounds all arguments and variables, with their zeros and pointers.
	Total int
}

const (
	// execString is how many pages the kernel takes of one argument or variable (MAX_ARG_STRLEN).
	execString = 32
	// minExecTotal and maxExecTotal bound what, in bytes, a quarter of the limit of the stack
	// counts for all of them.
	minExecTotal, maxExecTotal = 128 << 10, 6 << 20
)

// HostExecLimits returns the limits of a kernel with pages of a size in bytes, for containers whose
// stack has a limit in bytes; 0 is not known.
func HostExecLimits(pageSize int, stackLimit uint64) ExecLimits {
	limits := ExecLimits{String: execString * pageSize, Total: maxExecTotal}
	if stackLimit > 0 {
		limits.Total = int(max(minExecTotal, min(stackLimit/4, maxExecTotal)))
	}
	return limits
}

// pointerSize is what the kernel counts for each string besides.
const pointerSize = 8

// check returns what the kernel would not take of a container's arguments and variables. Those of
// its image, which come on top, are not counted.
func (l ExecLimits) check(cfg *runtimeapi.ContainerConfig) error {
	total := 0
	add := func(what string, size int) error {
		size++ // the final zero
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
