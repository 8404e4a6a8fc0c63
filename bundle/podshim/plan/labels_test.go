package plan

import (
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// labelled returns the sample with an AppArmor profile and SELinux labels.
func labelled() Container {
	c := sample()
	const label = "system_u:system_r:container_t:s0:c1,c2"
	c.Spec.Process.ApparmorProfile, c.Spec.Process.SelinuxLabel = "cri-containerd.apparmor.d", label
	c.Spec.Linux.MountLabel = "system_u:object_r:container_file_t:s0:c1,c2"
	c.Rootfs[0].Options = append(c.Rootfs[0].Options, `context="`+c.Spec.Linux.MountLabel+`"`)
	c.Spec.Mounts = append(c.Spec.Mounts, specs.Mount{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}})
	return c
}

// A label is written while the process has the /proc of the host, before any that the container
// controls.
func TestLabelsOfAnExec(t *testing.T) {
	p, err := NewExec(labelled().Spec.Process, nil, Confinement{})
	if err != nil {
		t.Fatal(err)
	}
	const want = `write s0="self/attr/keycreate" s1="system_u:system_r:container_t:s0:c1,c2"; join new keyring; ` +
		`write s0="self/attr/exec" s1="system_u:system_r:container_t:s0:c1,c2"; write s0="self/attr/apparmor/exec" s1="exec cri-containerd.apparmor.d"; enter namespaces`
	var all []string
	for _, s := range p.steps {
		all = append(all, s.String())
	}
	if got := strings.Join(all, "; "); !strings.Contains(got, want) {
		t.Errorf("%s\nhas no\n%s", got, want)
	}
}
