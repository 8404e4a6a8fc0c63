package stats

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/host/cgroupstat"
	"berth/internal/pod"
)

// use runs f over a collector of the host.
func use(t *testing.T, change func(h *host, cfg *Config), f func(t *testing.T, h *host, c *Collector)) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t)
		c := h.collector()
		if change != nil {
			change(h, &c.cfg)
			c = New(c.cfg)
		}
		defer run(t, c)()
		f(t, h, c)
	})
}

// version1 makes the host's cgroups those of version 1.
func version1(h *host, cfg *Config) {
	for path, usage := range map[string]string{"": "5242880\n", "kubepods": "6291456\n"} {
		h.write("v1/memory/"+path+"/memory.stat", "cache 2097152\nrss 3145728\ninactive_file 1\ntotal_cache 2097152\ntotal_rss 3145728\ntotal_inactive_file 1048576\n")
		h.write("v1/memory/"+path+"/memory.usage_in_bytes", usage)
		h.write("v1/memory/"+path+"/memory.limit_in_bytes", "16777216\n")
		h.write("v1/cpuacct/"+path+"/cpuacct.usage", "1\n")
	}
	cfg.Hierarchy = func() (cgroupstat.Hierarchy, error) { return cgroupstat.At(1, h.dir+"/v1"), nil }
}

func TestUse(t *testing.T) {
	const mi = 1 << 20
	tasks := Amount{20000 - 234, 20000}
	meminfo := func(text string) func(*host, *Config) {
		return func(h *host, _ *Config) { h.write("proc/meminfo", text) }
	}
	limit := func(text string) func(*host, *Config) {
		return func(h *host, _ *Config) { h.write("cgroup/kubepods/memory.max", text) }
	}
	pods := Amount{16*mi - 5*mi, 16 * mi}
	for _, tt := range []struct {
		name   string
		change func(*host, *Config)
		want   Use
	}{
		{"the machine's working set has no inactive files", nil, Use{Memory: Amount{4 * mi, 8 * mi}, PodsMemory: pods, Tasks: tasks, PodsFree: 10 * mi}},
		{"version 1", version1, Use{Memory: Amount{4 * mi, 8 * mi}, PodsMemory: pods, Tasks: tasks, PodsFree: 10 * mi}},
		{"the kernel itself takes memory", meminfo("MemTotal: 8192 kB\nMemFree: 512 kB\nMemAvailable: 1024 kB\n"), Use{
			Memory: Amount{mi, 8 * mi}, PodsMemory: pods, Tasks: tasks, Free: mi / 2, PodsFree: 10 * mi,
		}},
		{"the kernel could give more", meminfo("MemTotal: 8192 kB\nMemFree: 512 kB\nMemAvailable: 8000 kB\n"), Use{
			Memory: Amount{4 * mi, 8 * mi}, PodsMemory: pods, Tasks: tasks, Free: mi / 2, PodsFree: 10 * mi,
		}},
		{"more is used than there is", meminfo("MemTotal: 1024 kB\n"), Use{Memory: Amount{0, mi}, PodsMemory: pods, Tasks: tasks, PodsFree: 10 * mi}},
		{"nothing is known of memory", meminfo(""), Use{PodsMemory: pods, Tasks: tasks, PodsFree: 10 * mi}},
		{"pods have no limit", limit("max\n"), Use{Memory: Amount{4 * mi, 8 * mi}, Tasks: tasks}},
		{"pods are above their limit", limit("1048576\n"), Use{Memory: Amount{4 * mi, 8 * mi}, PodsMemory: Amount{0, mi}, Tasks: tasks}},
		{"version 1 without a limit", func(h *host, cfg *Config) {
			version1(h, cfg)
			h.write("v1/memory/kubepods/memory.limit_in_bytes", "9223372036854771712\n")
		}, Use{Memory: Amount{4 * mi, 8 * mi}, Tasks: tasks}},
		{"there are no pods yet", func(_ *host, cfg *Config) { cfg.Class = func(v1.PodQOSClass) string { return "" } }, Use{Memory: Amount{4 * mi, 8 * mi}, Tasks: tasks}},
		{"one bound of tasks", func(h *host, _ *Config) { h.write("proc/sys/kernel/threads-max", "") }, Use{
			Memory: Amount{4 * mi, 8 * mi}, PodsMemory: pods, Tasks: Amount{32768 - 234, 32768}, PodsFree: 10 * mi,
		}},
		{"more tasks than there can be", func(h *host, _ *Config) { h.write("proc/loadavg", "0.00 0.01 0.05 1/20001 5678\n") }, Use{
			Memory: Amount{4 * mi, 8 * mi}, PodsMemory: pods, Tasks: Amount{0, 20000}, PodsFree: 10 * mi,
		}},
		{"nothing is known of tasks", func(h *host, _ *Config) { h.write("proc/loadavg", "") }, Use{
			Memory: Amount{4 * mi, 8 * mi}, PodsMemory: pods, PodsFree: 10 * mi,
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			use(t, tt.change, func(t *testing.T, _ *host, c *Collector) {
				got, err := c.Use(t.Context())
				if err != nil || !got.Time.Equal(time.Now()) {
					t.Errorf("read at %s, error %v", got.Time, err)
				}
				got.Time = time.Time{}
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Errorf("-want +got:\n%s", diff)
				}
			})
		})
	}
}

// Each question is a reading of its own, and waits no longer than who asks.
func TestUseIsReadAnew(t *testing.T) {
	use(t, nil, func(t *testing.T, h *host, c *Collector) {
		for _, used := range []string{"6291456\n", "7340032\n"} {
			h.write("cgroup/kubepods/memory.current", used)
			if _, err := c.Use(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		u, err := c.Use(t.Context())
		if err != nil || u.PodsFree != 9<<20 {
			t.Errorf("%+v, %v", u, err)
		}
		if _, err := c.Read(t.Context()); err != nil {
			t.Fatal(err)
		}
		h.write("cgroup/kubepods/podu/memory.current", "7340032\n")
		if uses, err := c.PodUses(t.Context()); err != nil || uses["u"].Memory != 6<<20 {
			t.Errorf("within a second of another reading: %+v, %v", uses, err)
		}
		<-c.lock
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.Use(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("while another reading lasts: %v", err)
		}
		if _, err := c.PodUses(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("while another reading lasts: %v", err)
		}
		c.release()
	})
	use(t, func(_ *host, cfg *Config) {
		cfg.Hierarchy = func() (cgroupstat.Hierarchy, error) { return cgroupstat.Hierarchy{}, errors.New("no cgroups") }
	}, func(t *testing.T, _ *host, c *Collector) {
		for range 2 { // the lock is given back
			if _, err := c.Use(t.Context()); err == nil || err.Error() != "read usage: no cgroups" {
				t.Errorf("%v", err)
			}
			if _, err := c.PodUses(t.Context()); err == nil || err.Error() != "read usage: no cgroups" {
				t.Errorf("%v", err)
			}
		}
	})
}

func TestPodUses(t *testing.T) {
	use(t, nil, func(t *testing.T, h *host, c *Collector) {
		h.write("cgroup/kubepods/podu/pids.current", "5\n")
		got, err := c.PodUses(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		want := map[pod.UID]PodUse{"u": {Memory: 5 << 20, Tasks: 5, Containers: map[string]uint64{"main": 5 << 20}}}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	})
}

func TestFileSystem(t *testing.T) {
	use(t, nil, func(t *testing.T, h *host, c *Collector) {
		var s unix.Statfs_t
		var st unix.Stat_t
		if err := errors.Join(unix.Statfs(h.dir, &s), unix.Stat(h.dir, &st)); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{c.cfg.RootDir, h.dir} {
			got, err := c.FileSystem(path)
			if err != nil {
				t.Fatal(err)
			}
			if got.Device != st.Dev || got.Space.Capacity != s.Blocks*uint64(s.Bsize) || got.Inodes.Capacity != s.Files {
				t.Errorf("%s: %+v, want %+v", path, got, s)
			}
			if got.Space.Available == 0 || got.Space.Available > got.Space.Capacity || got.Inodes.Available > got.Inodes.Capacity {
				t.Errorf("%s: left %+v", path, got)
			}
		}
		if other, err := c.FileSystem("/proc"); err != nil || other.Device == st.Dev || other.Space != (Amount{}) {
			t.Errorf("/proc: %+v, %v", other, err)
		}
		if _, err := c.FileSystem(filepath.Join(h.dir, "none")); !errors.Is(err, unix.ENOENT) {
			t.Errorf("a path that is not there: %v", err)
		}
	})
}

func TestPlaces(t *testing.T) {
	at := func(path string) []*runtimeapi.FilesystemUsage {
		return []*runtimeapi.FilesystemUsage{{FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: path}}, {FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: "/second"}}}
	}
	for _, tt := range []struct {
		name               string
		images, containers []*runtimeapi.FilesystemUsage
		err                error
		wantImages, want   string
		wantErr            string
	}{
		{name: "apart", images: at("/i"), containers: at("/c"), wantImages: "/i", want: "/c"},
		{name: "layers are not told of", images: at("/i"), wantImages: "/i", want: "/i"},
		{name: "layers have no path", images: at("/i"), containers: at(""), wantImages: "/i", want: "/i"},
		{name: "the runtime names none", containers: at("/c"), wantErr: "image file system: the runtime names none"},
		{name: "no path", images: at(""), wantErr: "image file system: the runtime names none"},
		{name: "the runtime is down", err: errors.New("down"), wantErr: "image file system: down"},
	} {
		fake := fsInfo{&runtimeapi.ImageFsInfoResponse{ImageFilesystems: tt.images, ContainerFilesystems: tt.containers}, tt.err}
		got, err := New(Config{RootDir: "/root", Runtime: fake}).Places(t.Context())
		if tt.wantErr != "" {
			if err == nil || err.Error() != tt.wantErr {
				t.Errorf("%s: %v, want %s", tt.name, err, tt.wantErr)
			}
			continue
		}
		if diff := cmp.Diff(Places{"/root", tt.wantImages, tt.want}, got); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", tt.name, err, diff)
		}
	}
}

// fsInfo is what a runtime says of its file systems.
type fsInfo struct {
	*runtimeapi.ImageFsInfoResponse
	err error
}

func (fsInfo) UpperDir(context.Context, pod.ContainerID) (string, error) { return "", nil }

func (f fsInfo) ImageFsInfo(context.Context) (*runtimeapi.ImageFsInfoResponse, error) {
	return f.ImageFsInfoResponse, f.err
}
