//go:build e2e && vm

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

// hog is a container that, when it is told to go, takes memory for good: so many bytes in a second,
// or as many as this machine can write. It says in /shared/taken when it had how much. With ends it
// ends as soon as it is asked to; without, as the first process of its container, only by SIGKILL.
func hog(name string, rate int64, ends string) v1.Container {
	return actor(name, fmt.Sprintf(`exec perl -e '
sub now { open(my $f, "<", "/proc/uptime"); return (split " ", <$f>)[0] }
sub pause { select(undef, undef, undef, shift) }
$SIG{TERM} = sub { exit } if "%s";
open(my $said, ">>", "/shared/taken");
syswrite($said, "waits\n");
pause(0.05) until -e "/shared/go";
my ($began, $chunk, $taken, @all) = (now(), 4 << 20, 0);
while (1) {
	push @all, "x" x $chunk;
	$taken += $chunk;
	my $ahead = $taken / %d - (now() - $began);
	pause($ahead) if $ahead > 0;
	syswrite($said, sprintf("%%.2f %%d\n", now(), $taken)) if $taken %% (5 * $chunk) == 0;
}'
`, ends, rate))
}

// taken is what a hog has said of how fast it took memory: from when it had a fifth of it on, in
// bytes in a second.
func (n *node) taken(pod string) (total, rate int64) {
	n.t.Helper()
	var at []float64
	var bytes []int64
	for line := range strings.Lines(readFile(n.t, filepath.Join(n.stage(pod), "taken"))) {
		var when float64
		var have int64
		if _, err := fmt.Sscan(line, &when, &have); err == nil {
			at, bytes = append(at, when), append(bytes, have)
		}
	}
	if len(at) < 10 {
		return 0, 0
	}
	first, last := len(at)/5, len(at)-1
	return bytes[last], int64(float64(bytes[last]-bytes[first]) / (at[last] - at[first]))
}

// kernelKills is how many processes the kernel has killed for want of memory since it began.
func kernelKills(t *testing.T) int {
	t.Helper()
	for line := range strings.Lines(readFile(t, "/proc/vmstat")) {
		if value, ok := strings.CutPrefix(line, "oom_kill "); ok {
			kills, err := strconv.Atoi(strings.TrimSpace(value))
			must(t, err)
			return kills
		}
	}
	t.Fatal("/proc/vmstat has no oom_kill")
	return 0
}

// caches is what the caches of files are before a hog begins.
type caches func(t *testing.T, file string)

// emptyCaches leaves nothing in them.
func emptyCaches(t *testing.T, _ string) {
	t.Helper()
	must(t, os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0))
}

// fillCaches reads a file once that is larger than the memory, after there was nothing.
func fillCaches(t *testing.T, file string) {
	t.Helper()
	emptyCaches(t, file)
	if out, err := exec.Command("dd", "if="+file, "of=/dev/null", "bs=1M").CombinedOutput(); err != nil {
		t.Fatalf("read %s: %v\n%s", file, err, out)
	}
}

// noSwap has the machine without swap until the test ends: what runs out then is memory.
func noSwap(t *testing.T) {
	t.Helper()
	const area = "/dev/disk/by-id/virtio-swap"
	if out, err := exec.Command("swapoff", area).CombinedOutput(); err != nil {
		t.Fatalf("swapoff: %v\n%s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("swapon", area).CombinedOutput(); err != nil {
			t.Errorf("swapon: %v\n%s", err, out)
		}
	})
}

// Whoever takes 200 MB of memory in a second is evicted before the kernel has to kill anybody, nine
// times of ten; others in need of nothing go on.
func TestVMEvictionBeatsTheKernel(t *testing.T) {
	needsUnified(t)
	rounds := 10
	if s := os.Getenv("BERTH_ROUNDS"); s != "" {
		var err error
		rounds, err = strconv.Atoi(s)
		must(t, err)
	}
	for _, tc := range []struct {
		name, threshold string
		ends            string // not "": the hog ends when it is asked to
		caches          caches
	}{
		{"empty caches", "100Mi", "yes", emptyCaches},
		{"full caches", "100Mi", "yes", fillCaches},
		{"empty caches, does not end", "100Mi", "", emptyCaches},
		{"full caches, does not end", "100Mi", "", fillCaches},
		{"empty caches, does not end, more kept", "500Mi", "", emptyCaches},
		{"full caches, does not end, more kept", "500Mi", "", fillCaches},
	} {
		t.Run(tc.name, func(t *testing.T) {
			noSwap(t)
			n := newNodeFor(t, 3*time.Minute)
			file := filepath.Join(n.place.Dir, "large")
			if out, err := exec.Command("dd", "if=/dev/zero", "of="+file, "bs=1M", "count=3000", "oflag=direct").CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			asks := n.act("asks", v1.RestartPolicyAlways, nil, bounded(actor("main", "stay\n"), "", "100m 64Mi"))
			n.put(asks)
			n.put(n.act("quiet", v1.RestartPolicyAlways, nil, actor("main", "stay\n")))
			names := []string{"asks", "quiet"}
			for i := range rounds {
				name := fmt.Sprintf("hog%d", i)
				n.put(n.act(name, v1.RestartPolicyAlways, nil, hog("main", 200e6, tc.ends)))
				names = append(names, name)
			}
			a := n.start("--log-level", "debug", "--eviction-hard", "memory.available<"+tc.threshold, "--eviction-pressure-transition-period", "1s")
			before := n.awaitReady(names...)
			won := 0
			for i := range rounds {
				name := fmt.Sprintf("hog%d", i)
				until(t, name+" to wait", func() bool { return exists(t, filepath.Join(n.stage(name), "taken")) })
				tc.caches(t, file)
				kills := kernelKills(t)
				n.mark(name, "go")
				n.await(name+" to end", func(p pods) bool {
					h := p.named(name)
					return h.Status.Phase == v1.PodFailed || container(h, "main").RestartCount > 0
				})
				total, rate := n.taken(name)
				killed := kernelKills(t) - kills
				if killed == 0 {
					won++
				}
				t.Logf("%s: took %d MB at %d MB/s; killed by the kernel: %d", name, total/1e6, rate/1e6, killed)
				must(t, os.Remove(filepath.Join(n.stage(name), "go")))
				until(t, "the pressure to go", func() bool {
					return strings.Count(a.said(), "the node has enough again") == strings.Count(a.said(), "the node runs short")
				})
			}
			for _, name := range names[:2] {
				wantUntouched(t, n, before.named(name))
			}
			t.Logf("the agent was first %d times of %d", won, rounds)
			if 10*won < 9*rounds {
				t.Errorf("the agent was first %d times of %d, want nine of ten", won, rounds)
			}
			log, err := os.ReadFile(a.log)
			must(t, err)
			for line := range strings.Lines(string(log)) {
				for _, part := range []string{"wire", "alarm", "evict", "pressure", "short", "enough", "kill", "stop", "no longer", "exit"} {
					if strings.Contains(line, part) {
						t.Log(strings.TrimSpace(line))
						break
					}
				}
			}
		})
	}
}
