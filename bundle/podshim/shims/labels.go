package shims

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/opencontainers/selinux/go-selinux"
	"github.com/opencontainers/selinux/go-selinux/label"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/bundle/podshim/plan"
)

// modules are the enabled Linux security modules of the host.
type modules struct{ appArmor, seLinux bool }

func hostModules() modules {
	b, err := os.ReadFile("/sys/module/apparmor/parameters/enabled")
	return modules{appArmor: err == nil && strings.HasPrefix(string(b), "Y"), seLinux: selinux.GetEnabled()}
}

// validate rejects a label of a process, or of its container's files, that no security module would
// enforce.
func (m modules) validate(process *specs.Process, mountLabel string) error {
	const without = "the host has no %s, or it is not enabled: start the host with it, or the pod without"
	switch {
	case process.ApparmorProfile != "" && !m.appArmor:
		return &plan.FieldError{Field: "process.apparmorProfile", Reason: fmt.Sprintf("is %q, and "+without, process.ApparmorProfile, "AppArmor"), Invalid: true}
	case process.SelinuxLabel != "" && !m.seLinux:
		return &plan.FieldError{Field: "process.selinuxLabel", Reason: fmt.Sprintf("is %q, and "+without, process.SelinuxLabel, "SELinux"), Invalid: true}
	case mountLabel != "" && !m.seLinux:
		return &plan.FieldError{Field: "linux.mountLabel", Reason: fmt.Sprintf("is %q, and "+without, mountLabel, "SELinux"), Invalid: true}
	}
	return nil
}

// label gives the pod its own labels, which are empty without SELinux. containerd derives the
// labels of its containers' processes from the first.
func (p *pod) label(o *runtime.SELinuxOption) (err error) {
	var options []string
	for name, value := range map[string]string{"user": o.GetUser(), "role": o.GetRole(), "type": o.GetType(), "level": o.GetLevel()} {
		if value != "" {
			options = append(options, name+":"+value)
		}
	}
	if p.record.Label, p.mountLabel, err = label.InitLabels(options); err != nil {
		return fmt.Errorf("linux.security_context.selinux_options: %w", err)
	}
	return nil
}

// labelFiles labels the pod's files so that its containers may use them.
func (p *pod) labelFiles() error {
	if p.mountLabel == "" {
		return nil
	}
	for _, file := range podFileNames {
		if err := selinux.SetFileLabel(filepath.Join(p.dir, file), p.mountLabel); err != nil {
			return err
		}
	}
	return nil
}

// shmOptions returns the mount options of the pod's /dev/shm.
func (p *pod) shmOptions() string {
	return label.FormatMountLabel("mode=1777,size=65536k", p.mountLabel)
}
