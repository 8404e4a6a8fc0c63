//go:build e2e && vm

package e2e

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"berth/internal/host/cgroups"
	"berth/internal/record/journal"
)

// eater is a container that, when it is told to go, holds so many bytes of memory, but takes none
// while the machine has less left than that.
func eater(name string, most, leaves int64) v1.Container {
	return actor(name, fmt.Sprintf(`exec perl -e '
sub left { open(my $f, "<", "/proc/meminfo"); while (<$f>) { return $1 << 10 if /^MemAvailable: +(\d+)/ } }
my ($chunk, @all) = (4 << 20);
while (1) {
	push @all, "x" x $chunk while -e "/shared/go" && @all * $chunk < %d && left() > %d;
	select(undef, undef, undef, 0.1);
}'
`, most, leaves))
}

// hog is a container that takes memory for good when it is told to go: as fast as it can until the
// machine has no more than so much left, and then so much in a second, both in bytes. It says in
// /shared/taken when it had taken how much. With ends it ends as soon as it is asked to; without,
// as the first process of its container, only by SIGKILL.
func hog(name string, paced, rate int64, ends bool) v1.Container {
	return actor(name, fmt.Sprintf(`exec perl -e '
sub now { open(my $f, "<", "/proc/uptime"); return (split " ", <$f>)[0] }
sub left { open(my $f, "<", "/proc/meminfo"); while (<$f>) { return $1 << 10 if /^MemAvailable: +(\d+)/ } }
sub pause { select(undef, undef, undef, shift) }
$SIG{TERM} = sub { exit } if %[1]d;
open(my $said, ">>", "/shared/taken");
syswrite($said, "waits\n");
pause(0.05) until -e "/shared/go";
my ($chunk, @all) = (4 << 20);
push @all, "x" x $chunk while left() > %[2]d;
my ($began, $taken) = (now(), 0);
while (1) {
	syswrite($said, sprintf("%%.2f %%d\n", now(), $taken));
	push @all, "x" x $chunk;
	$taken += $chunk;
	my $ahead = $taken / %[3]d - (now() - $began);
	pause($ahead) if $ahead > 0;
}'
`, map[bool]int{true: 1}[ends], paced, rate))
}

// taken is how much a hog has taken at its pace, and at which, in bytes in a second.
func (n *node) taken(pod string) (total, rate int64) {
	n.t.Helper()
	var first, when float64
	for line := range strings.Lines(readFile(n.t, filepath.Join(n.stage(pod), "taken"))) {
		if _, err := fmt.Sscan(line, &when, &total); err != nil {
			continue
		}
		if first == 0 {
			first = when
		}
		// What it took in the end, when the machine had none left, was not at its pace.
		if s := when - first; s > 0 && total <= paceIsMeasured {
			rate = int64(float64(total) / s)
		}
	}
	return total, rate
}

// wantSpared checks that the pods were not evicted, and run as they did.
func (n *node) wantSpared(before pods, names ...string) {
	n.t.Helper()
	now, err := n.list(n.ctx)
	must(n.t, err)
	for _, name := range names {
		if now.inPhase(name, v1.PodFailed) { // it is never ready again
			n.t.Errorf("%s has failed: %s", name, now.named(name).Status.Message)
			continue
		}
		wantUntouched(n.t, n, before.named(name))
	}
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

const (
	// hogPace is how fast memory is taken, in bytes in a second, on a machine that is as fast as
	// others.
	hogPace = 200e6
	// pacedFrom is what is left of memory when hogs begin to take it at their pace, paceIsMeasured
	// up to how much they took.
	pacedFrom, paceIsMeasured = 400e6, 150e6
)

// Who takes 200 MB of memory in a second is evicted before the kernel has to kill anybody, nine
// times of ten; others go on. On an emulated machine it takes as much less as the machine is
// slower: the agent is slower by as much.
func TestVMEvictionBeatsTheKernel(t *testing.T) {
	needsUnified(t)
	noSwap(t)
	slower := int64(patience(1))
	if s := os.Getenv("BERTH_HOG_SLOWER"); s != "" {
		_, _ = fmt.Sscan(s, &slower)
	}
	n := newNodeFor(t, 15*time.Minute)
	file := filepath.Join(n.place.Dir, "large")
	if out, err := exec.Command("fallocate", "-l", "3G", file).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	n.put(n.act("asks", v1.RestartPolicyAlways, nil, bounded(actor("main", "stay\n"), "", "100m 64Mi")))
	n.put(n.act("quiet", v1.RestartPolicyAlways, nil, actor("main", "stay\n")))
	type round struct {
		name   string
		ends   bool
		caches caches
	}
	kinds := []round{{"empty-ends", true, emptyCaches}, {"empty", false, emptyCaches}, {"full-ends", true, fillCaches}, {"full", false, fillCaches}}
	var rounds []round
	names := []string{"asks", "quiet"}
	for i := range 10 {
		r := kinds[i%len(kinds)]
		r.name = fmt.Sprintf("%s-%d", r.name, i)
		rounds = append(rounds, r)
		n.put(n.act(r.name, v1.RestartPolicyAlways, nil, hog("main", pacedFrom, hogPace/slower, r.ends)))
		names = append(names, r.name)
	}
	a := n.start("--log-level", "debug", "--eviction-pressure-transition-period", "1s")
	before := n.awaitReady(names...)
	for _, r := range rounds {
		until(t, r.name+" to wait", func() bool { return exists(t, filepath.Join(n.stage(r.name), "taken")) })
	}
	lost := 0
	for _, r := range rounds {
		r.caches(t, file)
		kills := kernelKills(t)
		n.mark(r.name, "go")
		n.await(r.name+" to end", func(p pods) bool {
			return p.inPhase(r.name, v1.PodFailed) || container(p.named(r.name), "main").RestartCount > 0
		})
		kills = kernelKills(t) - kills
		lost += min(kills, 1)
		total, rate := n.taken(r.name)
		must(t, os.Remove(filepath.Join(n.stage(r.name), "go")))
		t.Logf("%s: took %d of the last %d MB, at %d MB/s; killed by the kernel: %d", r.name, total/1e6, int(pacedFrom/1e6), rate/1e6, kills)
		until(t, "the node to have enough again", func() bool {
			said := a.said()
			return strings.Count(said, "the node has enough again") == strings.Count(said, "the node runs short")
		})
	}
	n.wantSpared(before, names[:2]...)
	if 10*lost > len(rounds) {
		t.Errorf("the kernel was first %d times of %d", lost, len(rounds))
	}
}

// Three pods take more than they asked for, and one of them whatever is left: they end one after
// the other, the least important one first, also when the agent is killed after the first. Others
// go on.
func TestVMEvictionOrder(t *testing.T) {
	needsUnified(t)
	needsSystemd(t)
	noSwap(t)
	n := newNode(t)
	flags := []string{"--cgroup-driver", "systemd", "--eviction-hard", "memory.available<500Mi", "--eviction-pressure-transition-period", "2s", "--log-level", "debug"}
	n.put(n.act("asks", v1.RestartPolicyAlways, nil, bounded(actor("main", "stay\n"), "", "100m 64Mi")))
	n.put(n.act("quiet", v1.RestartPolicyAlways, nil, actor("main", "stay\n")))
	names := []string{"asks", "quiet"}
	for i, c := range []v1.Container{eater("main", 200e6, 0), eater("main", 300e6, 0), eater("main", math.MaxInt64, 450e6)} {
		name := []string{"low", "middle", "high"}[i]
		p := n.act(name, v1.RestartPolicyAlways, nil, c)
		p.Spec.Priority = ptr.To(int32(10*i - 30)) // below that of quiet, which is over its request, too
		n.put(p)
		names = append(names, name)
	}
	a := n.start(flags...)
	before := n.awaitReady(names...)
	kills := kernelKills(t)
	for _, name := range names[2:] {
		n.mark(name, "go")
	}
	evicted := func(name string) {
		t.Helper()
		p := n.await(name+" to be evicted", func(p pods) bool { return p.inPhase(name, v1.PodFailed) }).named(name)
		if p.Status.Reason != "Evicted" {
			t.Errorf("%s failed with reason %q", name, p.Status.Reason)
		}
		wantText(t, name, p.Status.Message, "The node was low on resource: memory. Threshold quantity: 500Mi", "Container main was using")
	}
	evicted("low")
	a.kill()
	a = n.start(flags...)
	evicted("middle")
	wantText(t, "berth check", n.command(n.ctx, "check").out, "memory.available<500Mi", "(met for ")
	evicted("high")
	var began time.Time
	for _, name := range names[2:] {
		story := n.newestStory(name)
		i := slices.IndexFunc(story.Entries, func(e journal.Entry) bool { return e.Decision == "evict the pod" })
		if i < 0 {
			t.Errorf("the journal does not say why %s ended", name)
			continue
		}
		if at := story.Entries[i].Time; at.Before(began) {
			t.Errorf("%s was evicted before one that is less important", name)
		} else {
			began = at
		}
	}
	until(t, "the node to have enough again", func() bool {
		said := n.command(n.ctx, "check").out
		return strings.Contains(said, "memory.available<500Mi") && !strings.Contains(said, "(met for ")
	})
	n.wantSpared(before, names[:2]...)
	if more := kernelKills(t) - kills; more != 0 {
		t.Errorf("the kernel has killed %d processes", more)
	}
	kubepods := filepath.Dir(podCgroup(n, cgroups.Systemd, "", string(before.named("asks").UID)))
	t.Logf("memory.high of %s: %s", kubepods, readFile(t, kubepods+"/memory.high"))
	a.end(unix.SIGTERM)
	wantFile(t, kubepods+"/memory.high", "max")
}
