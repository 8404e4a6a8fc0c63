package podsync

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	mount "k8s.io/mount-utils"

	"berth/internal/observe/status"
	"berth/internal/pod"
	"berth/internal/pod/allocation"
	"berth/internal/record/events/messagestest"
	"berth/internal/record/journal"
	"berth/internal/runtime/crispec"
	"berth/internal/runtime/kuberuntime"
	"berth/internal/storage/volumes"
)

// stage is everything around a Syncer; it notes who was called.
type stage struct {
	calls  []string
	events []string

	prepareErr, setupErr volumes.Errors
	cgroupErr, killErr   error
	resizeErr            error // of the runtime's pass
	live                 volumes.Inputs
	// starts: the runtime's pass starts containers, and so asks for the mounts.
	starts bool
}

func (s *stage) note(call string) { s.calls = append(s.calls, call) }

func (s *stage) Register(*v1.Pod)   { s.note("register") }
func (s *stage) Unregister(pod.UID) { s.note("unregister") }

func (s *stage) EnsurePod(context.Context, *v1.Pod) error { s.note("cgroup"); return s.cgroupErr }
func (s *stage) PodParent(*v1.Pod) string                 { return "" }

func (s *stage) Prepare(context.Context, *v1.Pod) (volumes.Inputs, volumes.Errors) {
	s.note("prepare")
	return s.live, s.prepareErr
}

func (s *stage) Setup(_ context.Context, _ *v1.Pod, in volumes.Inputs) (map[string]crispec.Volume, volumes.Errors) {
	s.note("setup")
	if in.Live() != s.live.Live() {
		return nil, volumes.Errors{{Err: errors.New("setup got other inputs than prepare gave")}}
	}
	return nil, s.setupErr
}

func (s *stage) Teardown(context.Context, pod.UID) error { s.note("teardown"); return nil }

func (s *stage) SyncPod(ctx context.Context, r kuberuntime.Request) (kuberuntime.Result, error) {
	s.note("runtime")
	if !s.starts {
		return kuberuntime.Result{ResizeError: s.resizeErr}, nil
	}
	_, err := r.Volumes(ctx)
	return kuberuntime.Result{Touched: true}, err
}

func (s *stage) KillPod(context.Context, *v1.Pod, *pod.Status, time.Duration) error {
	return s.killErr
}
func (s *stage) ReleaseUserNamespace(pod.UID) error { return nil }

func (s *stage) Sync(*v1.Pod, *pod.Status)          {}
func (s *stage) Terminating(pod.UID)                {}
func (s *stage) Remove(pod.UID)                     {}
func (s *stage) Verdicts(pod.UID) pod.ProbeVerdicts { return pod.ProbeVerdicts{} }

// cgroups and remover keep the methods of the stage apart that have one name.
type cgroups struct{ *stage }

func (c cgroups) RemovePod(context.Context, pod.UID) error { return nil }

type remover struct{ *stage }

func (r remover) PruneDead(context.Context, *pod.Status) error                      { return nil }
func (r remover) RemovePod(context.Context, *pod.Status, kuberuntime.LogFate) error { return nil }
func (r remover) RemoveLogs(string, string, pod.UID) error                          { return nil }

func newSyncer(t *testing.T, s *stage) *Syncer {
	log := slog.New(slog.DiscardHandler)
	j := journal.New(log)
	return New(Config{
		Runtime: s, Remover: remover{s}, Probes: s, Cgroups: cgroups{s}, Volumes: s, Objects: s, Status: status.NewManager(log, j), Journal: j, Log: log, RootDir: t.TempDir(),
		WithTerminationMessages: func(_ context.Context, o *pod.Status) *pod.Status { return o },
		Event: func(_ *v1.Pod, _, eventtype, reason, message string) {
			messagestest.SawEvent(reason, message)
			s.events = append(s.events, eventtype+" "+reason+" "+message)
		},
		RuntimeName: func() string { return "fake" }, HostIPs: func() []string { return nil },
		Resources: noResources{}, Checkpoint: func(context.Context) {}, Allocations: allocation.New(allocation.Config{}),
	})
}

// noResources is a node that assigns no exclusive resources.
type noResources struct{}

func (noResources) PrepareDevices(context.Context, *v1.Pod) error   { return nil }
func (noResources) PrepareClaims(context.Context, *v1.Pod) error    { return nil }
func (noResources) Finish(context.Context, pod.UID) error           { return nil }
func (noResources) Health(p *v1.Pod) map[string][]v1.ResourceStatus { return nil }

func testPod() *v1.Pod {
	p := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c"}}}}
	p.UID, p.Namespace, p.Name = "u", "default", "web"
	return p
}

// liveInputs are those of a pod that shows its name in a volume.
func liveInputs(t *testing.T) volumes.Inputs {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	m, failed := volumes.New(volumes.Config{Root: t.TempDir(), Mounter: mount.NewFakeMounter(nil), Log: log, Journal: journal.New(log)})
	if failed != nil {
		t.Fatal(failed)
	}
	p := testPod()
	p.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "d", MountPath: "/d"}}
	p.Spec.Volumes = []v1.Volume{{Name: "d", VolumeSource: v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{}}}}
	in, err := m.Prepare(t.Context(), p)
	if err != nil || !in.Live() {
		t.Fatalf("got %v, %v", in, err)
	}
	return in
}

func TestVolumesOfAPass(t *testing.T) {
	missing := volumes.Errors{{Volume: "a", Err: errors.New(`secret "a" not found`)}, {Volume: "b", Err: errors.New("no")}}
	full := &volumes.Error{
		Class: volumes.LimitExceeded, Volume: "a",
		Err: errors.New(`the node takes no more volumes of CSI driver d: volume "a" was not attached: 28 of 28`),
	}
	for _, tc := range []struct {
		name     string
		stage    stage
		observed []pod.SandboxStatus
		calls    []string
		events   []string
		err      bool
		rejected string // reason and message of the status
	}{
		{
			name:  "containers start: mounts beside the sandbox, once",
			stage: stage{starts: true, live: liveInputs(t)},
			calls: []string{"register", "cgroup", "prepare", "runtime", "setup"},
		},
		{
			name:  "nothing to start: what runs is shown the newest files",
			stage: stage{live: liveInputs(t)},
			calls: []string{"register", "cgroup", "prepare", "runtime", "setup"},
		},
		{
			name:  "nothing to start and nothing to show",
			calls: []string{"register", "cgroup", "prepare", "runtime"},
		},
		{
			name:   "an object is missing: no sandbox",
			stage:  stage{prepareErr: missing, starts: true},
			calls:  []string{"register", "cgroup", "prepare"},
			events: []string{`Warning FailedMount MountVolume.SetUp failed for volume "a" : secret "a" not found`, `Warning FailedMount MountVolume.SetUp failed for volume "b" : no`},
			err:    true,
		},
		{
			name:     "an object is missing of a pod that has its volumes: the rest goes on",
			stage:    stage{prepareErr: missing, starts: true},
			observed: []pod.SandboxStatus{{ID: "s", Ready: true}},
			calls:    []string{"register", "cgroup", "prepare", "runtime", "setup"},
			events:   []string{`Warning FailedMount MountVolume.SetUp failed for volume "a" : secret "a" not found`, `Warning FailedMount MountVolume.SetUp failed for volume "b" : no`},
		},
		{
			name:     "the machine takes no more volumes: no sandbox, ever",
			stage:    stage{prepareErr: volumes.Errors{{Err: errors.New("another")}, full}, starts: true},
			calls:    []string{"register", "cgroup", "prepare"},
			events:   []string{`Warning VolumeAttachmentLimitExceeded the node takes no more volumes of CSI driver d: volume "a" was not attached: 28 of 28`},
			rejected: `VolumeAttachmentLimitExceeded: Pod was rejected: the node takes no more volumes of CSI driver d: volume "a" was not attached: 28 of 28`,
		},
		{
			name:     "the machine takes no more volumes, of a pod that has them",
			stage:    stage{prepareErr: volumes.Errors{full}, starts: true},
			observed: []pod.SandboxStatus{{ID: "s", Ready: true}},
			calls:    []string{"register", "cgroup", "prepare", "runtime", "setup"},
			events:   []string{`Warning FailedMount the node takes no more volumes of CSI driver d: volume "a" was not attached: 28 of 28`},
		},
		{
			name:   "files cannot be written",
			stage:  stage{setupErr: volumes.Errors{{Volume: "a", Err: errors.New("no space")}}, live: liveInputs(t)},
			calls:  []string{"register", "cgroup", "prepare", "runtime", "setup"},
			events: []string{`Warning FailedMount MountVolume.SetUp failed for volume "a" : no space`},
			err:    true,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newSyncer(t, &tc.stage)
			result, err := s.SyncPod(t.Context(), Request{UID: "u", Pod: testPod(), Observed: &pod.Status{UID: "u", Sandboxes: tc.observed}})
			if (err != nil) != tc.err {
				t.Errorf("got %v", err)
			}
			rejected := ""
			if st, _ := s.Status.Get("u"); st.Phase == v1.PodFailed {
				messagestest.SawStatus(&st)
				rejected = st.Reason + ": " + st.Message
			}
			if result.Terminal != (tc.rejected != "") || rejected != tc.rejected {
				t.Errorf("the pod is terminal: %t, %q; want %q", result.Terminal, rejected, tc.rejected)
			}
			if d := cmp.Diff(tc.calls, tc.stage.calls); d != "" {
				t.Errorf("calls (-want +got):\n%s", d)
			}
			if d := cmp.Diff(tc.events, tc.stage.events); d != "" {
				t.Errorf("events (-want +got):\n%s", d)
			}
		})
	}
}

func TestReferencesEndWithThePod(t *testing.T) {
	st := &stage{}
	s := newSyncer(t, st)
	if err := s.SyncTerminatedPod(t.Context(), Request{UID: "u", Pod: testPod(), Observed: &pod.Status{UID: "u"}}); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(st.calls, []string{"teardown", "unregister"}) {
		t.Errorf("got %v", st.calls)
	}
}

// lasting is a runtime whose passes last.
type lasting struct {
	*stage
	mount, end chan struct{}
}

func (l lasting) SyncPod(ctx context.Context, r kuberuntime.Request) (kuberuntime.Result, error) {
	l.note("runtime")
	<-l.mount
	_, err := r.Volumes(ctx)
	<-l.end
	return kuberuntime.Result{Touched: true}, err
}

// What objects say newly is shown while a pass lasts.
func TestVolumesFollowDuringAPass(t *testing.T) {
	live := liveInputs(t)
	synctest.Test(t, func(t *testing.T) {
		st := &stage{live: live}
		s := newSyncer(t, st)
		l := lasting{st, make(chan struct{}), make(chan struct{})}
		s.Runtime = l
		wake, results := make(chan struct{}, 1), make(chan Result, 1)
		pass := func() {
			result, err := s.SyncPod(t.Context(), Request{UID: "u", Pod: testPod(), Observed: &pod.Status{UID: "u"}, Changed: wake})
			if err != nil {
				t.Error(err)
			}
			results <- result
		}
		want := func(when string, calls ...string) {
			t.Helper()
			synctest.Wait()
			if d := cmp.Diff(calls, st.calls); d != "" {
				t.Errorf("%s: calls (-want +got):\n%s", when, d)
			}
			st.calls = nil
		}
		go pass()
		want("at first", "register", "cgroup", "prepare", "runtime")
		wake <- struct{}{}
		want("woken when nothing is mounted", "prepare")
		l.mount <- struct{}{}
		want("then", "setup")
		wake <- struct{}{}
		want("woken", "prepare", "setup")
		st.prepareErr = volumes.Errors{{Err: errors.New("not now")}}
		wake <- struct{}{}
		want("woken, and an object is missing", "prepare")
		st.prepareErr = nil
		l.end <- struct{}{}
		<-results
		want("at the end")

		go pass()
		want("the next pass", "register", "cgroup", "prepare", "runtime")
		wake <- struct{}{}
		want("woken with the volumes of the pass before", "prepare", "setup")
		l.mount <- struct{}{}
		l.end <- struct{}{}
		<-results
		st.calls = nil

		st.live = volumes.Inputs{}
		go pass()
		want("without volumes that follow", "register", "cgroup", "prepare", "runtime")
		wake <- struct{}{}
		want("woken")
		l.mount <- struct{}{}
		l.end <- struct{}{}
		if <-results; len(wake) != 1 {
			t.Error("the pass takes wake-ups that it does not look at")
		}
	})
}

func TestCgroupThatCannotBeMade(t *testing.T) {
	s := &stage{cgroupErr: errors.New("no room")}
	if _, err := newSyncer(t, s).SyncPod(t.Context(), Request{UID: "u", Pod: testPod(), Observed: &pod.Status{UID: "u"}}); err == nil {
		t.Error("the pass went on")
	}
	if want := []string{"Warning FailedCreatePodContainer unable to ensure pod container exists: no room"}; !slices.Equal(s.events, want) {
		t.Errorf("events %q, want %q", s.events, want)
	}
}
