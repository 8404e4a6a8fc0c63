//go:build e2e && podshim

package podshim

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// expected is a container, and what it was made to do.
type expected struct {
	pod, kind   string
	code, lines int
	asked       bool // a call for it was made
	made, runs  bool // CreateContainer and StartContainer were answered
}

func (e *expected) args(ms int) []string {
	switch e.kind {
	case "ends":
		return []string{"exit", strconv.Itoa(ms), strconv.Itoa(e.code)}
	case "counts":
		return []string{"lines", strconv.Itoa(e.lines), strconv.Itoa(e.code)}
	case "writes":
		return []string{"write"}
	}
	return []string{"sleep"}
}

// tally is what happened in all rounds.
type tally struct{ containers, ended, away, inFlight, running, torn, lines int }

// SIGKILL of containerd at random moments of starts, exits and removals: everything that ran runs,
// each exit is right, and each line is in the log once.
func TestKilledAtRandomMoments(t *testing.T) {
	kills, seed := 5, uint64(time.Now().UnixNano())
	for name, set := range map[string]func(uint64){
		"PODSHIM_KILLS": func(n uint64) { kills = int(n) }, "PODSHIM_SEED": func(n uint64) { seed = n },
	} {
		if v := os.Getenv(name); v != "" {
			n, err := strconv.ParseUint(v, 10, 63)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			set(n)
		}
	}
	t.Logf("PODSHIM_SEED=%d PODSHIM_KILLS=%d", seed, kills)
	rnd := rand.New(rand.NewPCG(seed, 0))
	r := newRig(t)
	var all tally
	old := ""
	for n := range kills {
		old = r.round(&all, rnd, n, old)
		if t.Failed() {
			t.Fatalf("in round %d", n)
		}
	}
	for _, p := range r.pods() {
		r.must(r.remove(p.Id))
	}
	r.wantNothingLeft()
	t.Logf("%+v", all)
	if all.ended == 0 || all.running == 0 {
		t.Errorf("%+v: nothing has ended, or nothing ran: the rounds show nothing", all)
	}
}

// round starts three pods of three kinds with four containers each, and removes a pod of the round
// before; somewhere in there containerd is killed, is away for a while, and comes back. It returns
// a pod that it leaves.
func (r *rig) round(all *tally, rnd *rand.Rand, n int, old string) string {
	r.Helper()
	ms := func(most int) time.Duration { return time.Duration(rnd.IntN(most)) * time.Millisecond }
	var wg sync.WaitGroup
	var want []*expected
	for p := range 3 {
		name := fmt.Sprintf("r%d-p%d", n, p)
		list := []*expected{
			{pod: name, kind: "sleeps"},
			{pod: name, kind: "writes"},
			{pod: name, kind: "ends", code: 1 + rnd.IntN(120)},
			{pod: name, kind: "counts", code: 1 + rnd.IntN(120), lines: 50 + rnd.IntN(400)},
		}
		rnd.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		want = append(want, list...)
		delay, lives := ms(600), 1+rnd.IntN(1500)
		wg.Go(func() {
			time.Sleep(delay)
			r.populate(name, []string{"plain", "shared pid", "host pid"}[p], list, lives)
		})
	}
	if old != "" {
		delay := ms(1500)
		wg.Go(func() {
			time.Sleep(delay)
			r.remove(old) // again after the restart, if it was cut off
		})
	}
	time.Sleep(ms(2200))
	killed := time.Now()
	r.kill()
	wg.Wait()
	time.Sleep(ms(1500))
	back := time.Now()
	r.start()
	r.verify(all, want, killed, back)
	kept := ""
	for _, p := range r.pods() {
		if kept == "" && p.Metadata.Name == fmt.Sprintf("r%d-p1", n) && p.State == cri.PodSandboxState_SANDBOX_READY {
			kept = p.Id
			continue
		}
		if err := r.remove(p.Id); err != nil {
			r.Errorf("removal of %s: %v", p.Metadata.Name, err)
		}
	}
	return kept
}

// populate runs a pod, one of pods, with these containers, until a call fails as containerd is
// gone.
func (r *rig) populate(name, kind string, list []*expected, lives int) {
	pod := podConfig(r, name)
	pods[kind](pod)
	id, err := r.podOf(pod)
	if err != nil {
		return
	}
	for _, w := range list {
		w.asked = true
		c := containerConfig(r, name, w.kind, w.args(lives)...)
		c.Linux.SecurityContext.NamespaceOptions = namespaces(pod)
		if _, err := r.containerIn(id, pod, c, func() { w.made = true }); err != nil {
			return
		}
		w.runs = true
	}
}

func (r *rig) verify(all *tally, want []*expected, killed, back time.Time) {
	r.Helper()
	pods, found := map[string]string{}, map[string]string{}
	for _, p := range r.pods() {
		pods[p.Id] = p.Metadata.Name
	}
	for _, c := range r.containers() {
		found[pods[c.PodSandboxId]+"/"+c.Metadata.Name] = c.Id
	}
	for _, w := range want {
		if !w.asked {
			continue
		}
		all.containers++
		id, known := found[w.pod+"/"+w.kind]
		if !known {
			if w.runs {
				r.Errorf("%s/%s was started, and is not known", w.pod, w.kind)
			}
			continue
		}
		if !w.runs {
			all.inFlight++
		}
		r.verifyOne(all, w, r.settled(w, id), killed, back)
	}
}

// settled is the status of a container, when it has ended if it is to end.
func (r *rig) settled(w *expected, id string) *cri.ContainerStatus {
	r.Helper()
	s := r.status(id)
	if s.State == cri.ContainerState_CONTAINER_RUNNING && (w.kind == "ends" || w.kind == "counts") {
		return r.exits(id)
	}
	return s
}

func (r *rig) verifyOne(all *tally, w *expected, s *cri.ContainerStatus, killed, back time.Time) {
	r.Helper()
	endless := w.kind == "sleeps" || w.kind == "writes"
	switch {
	case s.State == cri.ContainerState_CONTAINER_CREATED && !w.runs:
		return
	case s.State == cri.ContainerState_CONTAINER_UNKNOWN && !w.made && s.StartedAt == 0:
		all.torn++ // containerd was killed before it wrote the container's first status
		return
	case s.State == cri.ContainerState_CONTAINER_EXITED && !w.runs && s.ExitCode == 128 && s.Reason == "StartError":
		return
	case s.State == cri.ContainerState_CONTAINER_RUNNING && endless:
		all.running++
	case s.State == cri.ContainerState_CONTAINER_EXITED && !endless && int(s.ExitCode) == w.code:
		all.ended++
		r.verifyTime(all, w, s, killed, back)
	default:
		r.Errorf("%s/%s (started %v, code %d): %v", w.pod, w.kind, w.runs, w.code, s)
		return
	}
	if w.kind == "counts" || w.kind == "writes" {
		n := r.lines(r.logFile(w.pod, w.kind))
		all.lines += n
		if w.kind == "counts" && n != w.lines {
			r.Errorf("log of %s/%s: %d lines of %d", w.pod, w.kind, n, w.lines)
		}
	}
}

// verifyTime compares when a container has ended with when its last line was written.
func (r *rig) verifyTime(all *tally, w *expected, s *cri.ContainerStatus, killed, back time.Time) {
	r.Helper()
	b, err := os.ReadFile(r.logFile(w.pod, w.kind))
	r.must(err)
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	last := strings.Fields(lines[len(lines)-1])
	if len(last) != 4 || last[3] != "bye" {
		r.Errorf("log of %s/%s ends with %q", w.pod, w.kind, last)
		return
	}
	bye, err := time.Parse(time.RFC3339Nano, last[0])
	r.must(err)
	ended := time.Unix(0, s.FinishedAt)
	if d := ended.Sub(bye); d < 0 || d > 2*time.Second {
		r.Errorf("%s/%s has ended %s after its last line", w.pod, w.kind, d)
	}
	if ended.After(killed) && ended.Before(back) {
		all.away++
	}
}

// lines counts the numbered lines of a log. Each must be there once, and in its order.
func (r *rig) lines(file string) int {
	r.Helper()
	b, err := os.ReadFile(file)
	if os.IsNotExist(err) {
		return 0 // it was not started yet
	}
	r.must(err)
	next := 0
	text := string(b)
	for line := range strings.Lines(text[:strings.LastIndexByte(text, '\n')+1]) { // the last may just be written
		f := strings.Fields(line)
		if len(f) == 4 && f[3] == "bye" {
			continue
		}
		if len(f) != 5 || f[1] != "stdout" || f[2] != "F" || f[3] != "line" || f[4] != strconv.Itoa(next) {
			r.Errorf("%s: %q, want line %d", file, line, next)
			return next
		}
		next++
	}
	return next
}
