package plan

import (
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// labels adds the AppArmor profile and the SELinux label of the program, which apply at its
// execution. The session keyring is new, without keys of the runtime.
func (p *Plan) labels(process *specs.Process) {
	if process.SelinuxLabel != "" {
		p.add(opWriteProc, [4]string{"self/attr/keycreate", process.SelinuxLabel})
	}
	p.add(opJoinKeyring, [4]string{})
	if process.SelinuxLabel != "" {
		p.add(opWriteProc, [4]string{"self/attr/exec", process.SelinuxLabel})
	}
	if process.ApparmorProfile != "" {
		p.add(opWriteProc, [4]string{"self/attr/apparmor/exec", "exec " + process.ApparmorProfile})
	}
}

// labelOption adds the label of the container's files to the options of a newly created file
// system, as runc does.
func (p *Plan) labelOption(kind, data string) string {
	if p.label == "" || !slices.Contains([]string{"tmpfs", "devpts"}, kind) {
		return data
	}
	if data != "" {
		data += ","
	}
	return data + `context="` + p.label + `"`
}

// labelQueue labels a message queue file system. It has no label mount option, because the pod
// shares one.
func (p *Plan) labelQueue(m specs.Mount) {
	if p.label != "" && m.Type == "mqueue" {
		p.add(opSetLabel, [4]string{p.label, m.Destination})
	}
}
