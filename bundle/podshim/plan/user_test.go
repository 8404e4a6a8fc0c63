package plan

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/containerd/api/types"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// ids maps 65536 IDs to those of the host that begin with host.
func ids(host uint32) []specs.LinuxIDMapping {
	return []specs.LinuxIDMapping{{ContainerID: 0, HostID: host, Size: 65536}}
}

// inUserNamespace returns the sample in a user namespace.
func inUserNamespace() Container {
	c := sample()
	l := c.Spec.Linux
	l.Namespaces = append(l.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace, Path: "/proc/42/ns/user"})
	l.UIDMappings, l.GIDMappings = ids(200000), ids(300000)
	c.Spec.Mounts[5].UIDMappings, c.Spec.Mounts[5].GIDMappings = ids(200000), ids(300000)
	c.Rootfs = []*types.Mount{{Type: "overlay", Source: "overlay", Options: []string{"workdir=/w", "upperdir=/s/3/fs", "lowerdir=/s/12/fs:/s/1/fs", "uidmap=0:200000:65536", "gidmap=0:300000:65536"}}}
	return c
}

// targetInUserNamespace returns a container that shares the PID namespace of another one, with a
// terminal.
func targetInUserNamespace() Container {
	c := inUserNamespace()
	c.SharesProcesses, c.Proc, c.Spec.Linux.Namespaces[0].Path = true, "/proc", "/proc/50/ns/pid"
	c.Spec.Process.Terminal, c.Spec.Mounts = true, c.Spec.Mounts[:1]
	return c
}

func TestRejectedUserNamespaces(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Container)
		field  string
	}{
		"another's":          {func(c *Container) { c.Spec.Linux.Namespaces[5].Path = "/proc/43/ns/user" }, "linux.namespaces[5]"},
		"two ranges":         {func(c *Container) { c.Spec.Linux.UIDMappings = append(ids(1), ids(2)...) }, "linux.uidMappings"},
		"no root":            {func(c *Container) { c.Spec.Linux.GIDMappings[0].ContainerID = 1 }, "linux.gidMappings"},
		"no ids":             {func(c *Container) { c.Spec.Linux.GIDMappings = nil }, "linux.gidMappings"},
		"other ids of image": {func(c *Container) { c.Rootfs[0].Options[3] = "uidmap=0:1:65536" }, "rootfs[0]"},
		"half an image":      {func(c *Container) { c.Rootfs[0].Options = c.Rootfs[0].Options[:4] }, "rootfs[0]"},
		"image in one":       {func(c *Container) { c.Rootfs[0].Type = "bind" }, "rootfs[0]"},
		"layers anywhere":    {func(c *Container) { c.Rootfs[0].Options[2] = "lowerdir=/a/fs:/b/fs" }, "rootfs[0]"},
		"layers by the way":  {func(c *Container) { c.Rootfs[0].Options[2] = "lowerdir=a/fs:a/fs" }, "rootfs[0]"},
		"other ids":          {func(c *Container) { c.Spec.Mounts[5].UIDMappings = ids(1) }, "mounts[5] (/data//deep/)"},
		"no gids":            {func(c *Container) { c.Spec.Mounts[5].GIDMappings = nil }, "mounts[5] (/data//deep/)"},
		"mapped proc": {func(c *Container) {
			c.Spec.Mounts[0].UIDMappings, c.Spec.Mounts[0].GIDMappings = ids(200000), ids(300000)
		}, "mounts[0] (/proc)"},
		"options of the target's proc": {func(c *Container) {
			*c = targetInUserNamespace()
			c.Spec.Mounts[0].Options = []string{"hidepid=2"}
		}, "mounts[0] (/proc)"},
		"no such group": {func(c *Container) { c.Spec.Mounts[2].Options[5] = "gid=65536" }, "mounts[2] (/dev/pts)"},
		"no group":      {func(c *Container) { c.Spec.Mounts[2].Options[5] = "gid=x" }, "mounts[2] (/dev/pts)"},
	} {
		c := inUserNamespace()
		tc.change(&c)
		_, err := New(c)
		var r *FieldError
		if !errors.As(err, &r) || r.Field != tc.field {
			t.Errorf("%s: error %v, want one that refuses %s", name, err, tc.field)
		}
	}
}

// A copy of the image with the IDs, for file systems without ID-mapped mounts.
func TestCopiedImage(t *testing.T) {
	c := inUserNamespace()
	c.Rootfs[0].Options = c.Rootfs[0].Options[:3]
	p, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	if all := strings.Join(words(p.steps), ", "); strings.Count(all, opMountIDMapped.String()) != 2 {
		t.Errorf("%s: want mapped ids of two files of the pod", all)
	}
}

func TestExecInUserNamespace(t *testing.T) {
	spec := inUserNamespace().Spec
	confined, err := Confine(spec)
	if err != nil {
		t.Fatal(err)
	}
	p, err := NewExec(spec.Process, nil, confined)
	if err != nil {
		t.Fatal(err)
	}
	if all := fmt.Sprint(p.steps); !strings.Contains(all, "control process n0=0x1c n1=0x4 make files as n0=0x30d40 n1=0x493e0 control process n0=0x1c enter namespaces n0=0x32020000 ") {
		t.Errorf("%v", p.steps)
	}
}
