//go:build e2e && podshim

package podshim

import (
	"archive/tar"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// CVE-2025-31133, CVE-2025-52565: what hides a file, and the terminal on /dev/console, are not
// what lies in a /dev that another container exchanges all the time.
func TestExchangedDevices(t *testing.T) {
	r := newRig(t)
	dev := r.path("dev")
	r.must(os.Mkdir(dev, 0o755))
	r.must(unix.Mknod(filepath.Join(dev, "null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	r.must(os.WriteFile(filepath.Join(dev, "console"), nil, 0o600))
	r.must(os.Mkdir(filepath.Join(dev, "pts"), 0o755))
	r.must(os.Mkdir(filepath.Join(dev, "fake"), 0o755))
	for i := range 4 {
		r.must(os.Symlink(victims[1], filepath.Join(dev, "fake", strconv.Itoa(i))))
	}
	swap := []string{"swap"}
	for name, to := range map[string]string{"null": victims[1], "console": victims[0], "pts": "fake"} {
		r.must(os.Symlink(to, filepath.Join(dev, name+"-link")))
		swap = append(swap, "/shared/"+name, "/shared/"+name+"-link")
	}
	pod, err := r.pod("devices")
	r.must(err)
	c := containerConfig(r, "devices", "swaps", swap...)
	c.Mounts = []*cri.Mount{{HostPath: dev, ContainerPath: "/shared"}}
	swaps, err := r.container(pod, c, func() {})
	r.must(err)
	ran := 0
	masked := []string{"/proc/keys", "/proc/timer_list"}
	for i := range 24 {
		name := fmt.Sprintf("c%d", i)
		c := containerConfig(r, "devices", name, slices.Concat([]string{"masks", "/dev/console"}, masked, victims)...)
		c.Mounts, c.Tty = []*cri.Mount{{HostPath: dev, ContainerPath: "/dev"}}, i%2 > 0
		id, err := r.container(pod, c, func() {})
		if err != nil {
			continue // what lay there was no null device, or no terminal
		}
		ran++
		r.exits(id)
		said := r.said("devices", name)
		for _, p := range masked {
			if !strings.Contains(said, p+": type 20000 number 1:3 of ") {
				t.Errorf("%s: %s is not hidden: %s", name, p, said)
			}
		}
		for line := range strings.Lines(said) {
			if strings.Contains(line, " of 9fa0 write <nil>") { // a file of /proc
				t.Errorf("%s: can be written to: %s", name, line)
			}
		}
	}
	if s := r.status(swaps); s.State != cri.ContainerState_CONTAINER_RUNNING || ran == 0 {
		t.Errorf("%d came to run; who exchanges is %s: %s", ran, s.State, r.said("devices", "swaps"))
	}
	if st, err := os.Stat(os.DevNull); err != nil || st.Mode().Perm() != 0o666 {
		t.Errorf("the host's null device is %v, %v", st.Mode(), err)
	}
	r.must(r.remove(pod))
	r.wantNothingLeft()
}

// CVE-2025-52881, CVE-2019-16884: what a pod shim writes for a process goes to the kernel's /proc,
// and not to what a container has in its place.
func TestProcIsTheKernels(t *testing.T) {
	r := newRig(t)
	r.fakeProc(r.path("proc"))
	pod, err := r.pod("proc")
	r.must(err)
	c := containerConfig(r, "proc", "c", "sleep")
	c.Mounts, c.Linux.Resources.OomScoreAdj = []*cri.Mount{{HostPath: r.path("proc"), ContainerPath: "/proc"}}, 321
	id, err := r.container(pod, c, func() {})
	r.must(err)
	go r.execSync(id, 0, "/payload", "exit", "1500", "0")
	pids := []int{r.pidOf(id)}
	eventually(r, "the exec runs", func() error {
		all := r.execs(id)
		if len(all) != 1 || all[0].state != "RUNNING" {
			return fmt.Errorf("execs: %v", all)
		}
		pids = append(pids, int(all[0].pid))
		return nil
	})
	for _, pid := range pids {
		if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid)); err != nil || strings.TrimSpace(string(b)) != "321" {
			t.Errorf("the OOM score of process %d is %s, %v", pid, b, err)
		}
	}
	err = filepath.WalkDir(r.path("proc"), func(path string, d os.DirEntry, err error) error {
		if b, e := os.ReadFile(path); err == nil && !d.IsDir() && (e != nil || len(b) > 0) {
			t.Errorf("%s has %q, %v", path, b, e)
		}
		return err
	})
	r.must(err)
	r.must(r.remove(pod))
	r.wantNothingLeft()
}

// CVE-2026-41579, CVE-2023-27561, CVE-2024-45310, CVE-2026-53488: links in an image, and its
// labels, have nothing made or changed outside of the container.
func TestHostileImages(t *testing.T) {
	r := newRig(t)
	r.must(os.MkdirAll(r.path("trap"), 0o755))
	r.must(os.WriteFile(r.path("trap", "ptmx"), []byte("of the host"), 0o600))
	out := "/../../../.." + r.path("trap")
	link := func(name, to string) tar.Header {
		return tar.Header{Name: name, Linkname: to, Typeflag: tar.TypeSymlink}
	}
	ran := 0
	labels := fmt.Sprintf(`{%q:%q,"containerd.io/log-uri":"binary:///payload?touch=x","io.cri-containerd.log-uri":"file://%s/log"}`, logAnnotation, r.path("trap", "log"), r.path("trap"))
	pod, err := r.pod("hostile")
	r.must(err)
	for name, files := range map[string][]tar.Header{
		"folder": {link("folder", out)}, "dev": {link("dev", out)}, "proc": {link("proc", out)}, "sys": {link("sys", out)}, "hosts": {link("etc/hosts", out+"/made"), link("etc/hostname", out+"/ptmx")},
		"inside": {link("dev", "tmp"), {Name: "tmp/ptmx", Typeflag: tar.TypeReg, Mode: 0o644}},
		"fifo":   {{Name: "etc/resolv.conf", Typeflag: tar.TypeFifo, Mode: 0o644}, {Name: "dev", Typeflag: tar.TypeDir, Mode: 0o755}, {Name: "dev/null", Typeflag: tar.TypeFifo, Mode: 0o666}},
	} {
		image := r.imageOf(name, labels, files...)
		for _, tty := range []bool{false, true} {
			name := name + "-" + strconv.FormatBool(tty)
			c := containerConfig(r, "hostile", name, "sleep")
			c.Image.Image, c.Tty, c.WorkingDir = image, tty, "/folder/made/here"
			c.Mounts = []*cri.Mount{{HostPath: r.path("logs"), ContainerPath: "/folder/logs"}}
			id, err := r.container(pod, c, func() {})
			if err == nil {
				ran++
				r.execSync(id, 0, "/payload", "look", "/")
				_, err = os.Stat(r.logFile("hostile", name))
				r.must(err)
			}
		}
	}
	if ran == 0 {
		t.Error("none came to run")
	}
	entries, err := os.ReadDir(r.path("trap"))
	r.must(err)
	st, err := os.Stat(r.path("trap", "ptmx"))
	r.must(err)
	b, err := os.ReadFile(r.path("trap", "ptmx"))
	if len(entries) != 1 || string(b) != "of the host" || st.Mode() != 0o600 {
		t.Errorf("the host's folder has %v; its file is %s with %q (%v)", entries, st.Mode(), b, err)
	}
	r.must(r.remove(pod))
	r.wantNothingLeft()
}
