package stats

import (
	"os"
	"testing"
)

func TestUpperDir(t *testing.T) {
	mount := func(point, upper string) string {
		return "1 0 0:30 / " + point + " rw,relatime shared:1 - overlay overlay rw,lowerdir=/l,upperdir=" + upper + ",workdir=/w\n"
	}
	const image = "3 0 0:32 / /image ro - overlay overlay ro,lowerdir=/a:/b\n"
	for _, tt := range []struct{ name, own, process, want string }{
		{"as containerd mounts it", image + mount("/other", "/u1") + mount("/run/"+mainID+"/rootfs", "/u2"), mount("/", "/else"), "/u2"},
		{"a process that changed its root", mount("/run/"+mainID+"/rootfs", "/u2"), "", "/u2"},
		{"as others mount it", mount("/other", "/u1") + mount("/storage/merged", "/u2"), mount("/data", "/u1") + mount("/", "/u2"), "/u2"},
		{"what a container mounted itself", mount("/storage/merged", "/u2"), mount("/", "/"), ""},
		{"no overlay", "1 0 0:30 / / rw - ext4 /dev/vda rw\n", "1 0 0:30 / / rw - ext4 /dev/vdb rw\n", ""},
		{"an id is more than a part of a name", mount("/run/"+mainID+"0/rootfs", "/u2"), "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHost(t)
			h.write("proc/self/mountinfo", tt.own)
			h.write("proc/17/mountinfo", tt.process)
			c := h.collector()
			if _, err := c.Read(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := c.layers.upperDir(t.Context(), c.layers.current(), mainID, "/kubepods/podu/"+mainID); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
	t.Run("as the runtime tells it, once", func(t *testing.T) {
		h := newHost(t)
		h.write("proc/self/mountinfo", image+mount("/other", "/u1"))
		h.write("proc/17/mountinfo", mount("/", "/u1"))
		h.upper = "/told"
		c := h.collector()
		for range 2 {
			if got := c.layers.upperDir(t.Context(), c.layers.current(), mainID, "/kubepods/podu/"+mainID); got != "/told" || h.asked != 1 {
				t.Errorf("%q, asked %d times; want /told, once", got, h.asked)
			}
		}
		c.forget()
		if c.layers.upperDir(t.Context(), c.layers.current(), mainID, ""); h.asked != 2 {
			t.Errorf("asked %d times after everything was forgotten, want twice", h.asked)
		}
	})
	h := newHost(t)
	if err := os.RemoveAll(h.dir + "/proc/self"); err != nil {
		t.Fatal(err)
	}
	c := h.collector()
	if got := c.layers.upperDir(t.Context(), c.layers.read(), mainID, ""); got != "" {
		t.Errorf("nothing can be read, and it is %q", got)
	}
}
