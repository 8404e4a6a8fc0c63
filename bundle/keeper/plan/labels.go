package plan

import (
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// labels say what the program is confined by, once it is executed: an AppArmor profile, an SELinux label. The
// key ring is one that has no keys of the runtime's.
func (p *Plan) labels(process *specs.Process) {
	if process.SelinuxLabel != "" {
		p.add(opWrite, [4]string{"self/attr/keycreate", process.SelinuxLabel})
	}
	p.add(opKeyring, [4]string{})
	if process.SelinuxLabel != "" {
		p.add(opWrite, [4]string{"self/attr/exec", process.SelinuxLabel})
	}
	if process.ApparmorProfile != "" {
		p.add(opWrite, [4]string{"self/attr/apparmor/exec", "exec " + process.ApparmorProfile})
	}
}

// context adds the label of the container's files to the options of a file system that the kernel makes
// anew for it, as runc does.
func (p *Plan) context(kind, data string) string {
	if p.label == "" || !slices.Contains([]string{"tmpfs", "devpts"}, kind) {
		return data
	}
	if data != "" {
		data += ","
	}
	return data + `context="` + p.label + `"`
}

// labelled gives a message queue file system its label, which is no option of its mount: there is one for all
// of the pod.
func (p *Plan) labelled(m specs.Mount) {
	if p.label != "" && m.Type == "mqueue" {
		p.add(opXattr, [4]string{p.label, m.Destination})
	}
}
