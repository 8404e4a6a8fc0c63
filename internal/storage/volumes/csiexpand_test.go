package volumes

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"berth/internal/record/events/messagestest"
	"berth/internal/storage/csi/csitest"
)

// growable is a Manager whose driver makes volumes larger, with one claim and the reasons of the
// events that came.
type growable struct {
	*driven
	pv     *v1.PersistentVolume
	events []string
}

func newGrowable(t *testing.T, change func(*csitest.Driver)) *growable {
	t.Helper()
	g := &growable{driven: newDriven(t, func(c *csitest.Driver) {
		c.Expands = true
		if change != nil {
			change(c)
		}
	})}
	g.pv = g.claim("c")
	g.pv.Spec.Capacity = sizeList("1Gi")
	g.change(func(s *v1.PersistentVolumeClaimStatus) { s.Capacity = sizeList("1Gi") })
	g.watch()
	return g
}

// watch notes the events of the Manager.
func (g *growable) watch() {
	g.host.recorder = &recorder{pod: func(p *v1.Pod, _, reason, message string) {
		messagestest.SawEvent(reason, message)
		g.events = append(g.events, p.Name+" "+reason)
	}}
	g.host.recorder.(*recorder).claim = func(c *v1.PersistentVolumeClaim, _, reason, _ string) { g.events = append(g.events, c.Name+" "+reason) }
	g.csi().config.ClaimsPeriod = time.Minute
}

// change is somebody else's write of the claim's status.
func (g *growable) change(f func(*v1.PersistentVolumeClaimStatus)) {
	c := g.storage.claims["c"].DeepCopy()
	f(&c.Status)
	c.ResourceVersion += "+"
	g.storage.claims["c"] = c
}

// grow is what a controller does that lets the volume grow.
func (g *growable) growTo(size string) {
	pv := g.pv.DeepCopy()
	pv.Spec.Capacity = sizeList(size)
	g.storage.volumes[pv.Name] = pv
	c := g.storage.claims["c"]
	c.Spec.Resources.Requests = sizeList(size)
	g.change(func(s *v1.PersistentVolumeClaimStatus) {
		s.AllocatedResources = sizeList(size)
		s.AllocatedResourceStatuses = map[v1.ResourceName]v1.ClaimResourceStatus{v1.ResourceStorage: v1.PersistentVolumeClaimNodeResizePending}
		s.Conditions = []v1.PersistentVolumeClaimCondition{{Type: v1.PersistentVolumeClaimFileSystemResizePending, Status: v1.ConditionTrue}}
	})
}

// look does what Run does after the time, and returns how many volumes it looked at.
func (g *growable) look(after time.Duration) int {
	g.t.Helper()
	due, _ := g.csi().expander.dueChecks(time.Now().Add(after))
	for _, ids := range due {
		g.csi().expander.expandGrown(g.t.Context(), ids)
	}
	return len(due[driverName])
}

// expectStatus compares the claim's size, the state of its growth, and what its conditions say.
func (g *growable) expectStatus(size string, state v1.ClaimResourceStatus, conditions ...string) {
	g.t.Helper()
	s := g.storage.claims["c"].Status
	var got []string
	for _, c := range s.Conditions {
		got = append(got, string(c.Type)+": "+c.Message)
	}
	has := s.Capacity[v1.ResourceStorage]
	if want := resource.MustParse(size); has.Cmp(want) != 0 || s.AllocatedResourceStatuses[v1.ResourceStorage] != state {
		g.t.Errorf("the claim has %s, %q; want %s, %q", has.String(), s.AllocatedResourceStatuses[v1.ResourceStorage], size, state)
	}
	if diff := cmp.Diff(conditions, got); diff != "" {
		g.t.Errorf("conditions (-want +got):\n%s", diff)
	}
}

func (g *growable) expectEvents(want ...string) {
	g.t.Helper()
	if diff := cmp.Diff(want, g.events); diff != "" {
		g.t.Errorf("events (-want +got):\n%s", diff)
	}
	g.events = nil
}

func TestCSIVolumeGrowsWhenItIsMounted(t *testing.T) {
	g := newGrowable(t, nil)
	g.growTo("2Gi")
	g.storage.volumes["pv-c"].Spec.CSI.NodeExpandSecretRef = &v1.SecretReference{Namespace: "keys", Name: "expand"}
	g.objects.secrets["keys/expand"] = &v1.Secret{Data: map[string][]byte{"key": []byte("expand")}}
	p := g.user("one", "c")
	if _, err := g.setup(t, p); err != nil {
		t.Fatal(err)
	}
	g.expectCalls("Stage", "Publish", "Expand")
	want := csitest.Call{
		Method: "NodeExpandVolume", Volume: "handle-c", Staging: g.staging("c") + "/globalmount", Target: publishPath(filepath.Join(g.host.root, "pods/one"), "pv-c"),
		Bytes: 2 << 30, FSType: "ext4", Flags: []string{"noatime"}, Mode: "SINGLE_NODE_WRITER", Secrets: map[string]string{"key": "expand"},
	}
	if diff := cmp.Diff(want, g.allCalls()[2]); diff != "" {
		t.Errorf("call (-want +got):\n%s", diff)
	}
	g.expectStatus("2Gi", "")
	g.expectEvents("p FileSystemResizeSuccessful", "c FileSystemResizeSuccessful")

	// A second pod has it as large as it is; so has the next agent.
	if _, err := g.setup(t, g.user("two", "c")); err != nil {
		t.Fatal(err)
	}
	g.restart()
	g.watch()
	if _, err := g.setup(t, p); err != nil {
		t.Fatal(err)
	}
	g.look(0)
	g.expectEvents()
	if n := len(slices.DeleteFunc(g.calls(), func(c string) bool { return c != "Expand" })); n != 1 {
		t.Errorf("expanded %d times", n)
	}
}

func TestCSIVolumeGrowsWhilePodsHaveIt(t *testing.T) {
	g := newGrowable(t, nil)
	p := g.user("one", "c")
	if _, err := g.setup(t, p); err != nil {
		t.Fatal(err)
	}
	if n := g.look(0); n != 1 {
		t.Errorf("%d volumes were looked at", n)
	}
	if _, next := g.csi().expander.dueChecks(time.Now()); next.IsZero() {
		t.Error("claims are not looked at again")
	}
	reads := g.storage.reads.Load()
	g.growTo("2Gi")
	if n := g.look(0); n != 0 {
		t.Errorf("%d volumes were looked at before their time", n)
	}
	for i := range 3 { // one time is enough
		g.look(time.Duration(i+1) * 2 * time.Minute)
	}
	g.expectCalls("Stage", "Publish", "Expand")
	g.expectStatus("2Gi", "")
	g.expectEvents("p FileSystemResizeSuccessful", "c FileSystemResizeSuccessful")
	if n := g.storage.reads.Load() - reads; n != 3 {
		t.Errorf("claims were read %d times", n)
	}

	// The next agent finds what has grown meanwhile, though it starts nothing of the pod.
	g.restart()
	g.watch()
	if _, err := g.Prepare(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	g.growTo("3Gi")
	g.look(time.Hour)
	g.expectCalls("Stage", "Publish", "Expand", "Expand")
	g.expectStatus("3Gi", "")

	if err := g.Teardown(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	if _, next := g.csi().expander.dueChecks(time.Now()); !next.IsZero() || len(g.csi().expander.growing) != 0 {
		t.Error("claims of nobody are looked at")
	}
}

// In what follows, a driver fails in one way or another.
func TestCSIVolumeThatDoesNotGrow(t *testing.T) {
	const failed = "NodeResizeError: failed to expand pvc with kubernetes.io/csi: Expander.NodeExpand failed to expand the volume: "
	for code, tt := range map[codes.Code]struct {
		state   v1.ClaimResourceStatus
		mounted bool
	}{
		codes.Internal:           {v1.PersistentVolumeClaimNodeResizeInProgress, false},
		codes.Unavailable:        {v1.PersistentVolumeClaimNodeResizeInProgress, false},
		codes.OutOfRange:         {v1.PersistentVolumeClaimNodeResizeInfeasible, false},
		codes.NotFound:           {v1.PersistentVolumeClaimNodeResizeInfeasible, false},
		codes.InvalidArgument:    {v1.PersistentVolumeClaimNodeResizeInfeasible, false},
		codes.FailedPrecondition: {v1.PersistentVolumeClaimNodeResizeInProgress, true},
	} {
		for _, fault := range []string{csitest.Fail, csitest.FailAfter} {
			t.Run(code.String()+"/"+fault, func(t *testing.T) {
				g := newGrowable(t, nil)
				strike := func() {
					if err := csitest.Break(g.driver.Dir, "NodeExpandVolume", fault, code); err != nil {
						t.Fatal(err)
					}
				}
				expectFailed := func() {
					t.Helper()
					c := g.storage.claims["c"].Status.Conditions
					for i := range c {
						messagestest.Saw("condition", string(c[i].Type)+"/"+c[i].Reason, c[i].Message)
					}
					if len(c) != 2 || !strings.HasPrefix(string(c[1].Type)+": "+c[1].Message, failed) {
						t.Errorf("conditions: %+v", c)
					}
					if got := g.storage.claims["c"].Status.AllocatedResourceStatuses[v1.ResourceStorage]; got != tt.state {
						t.Errorf("the claim is in state %s, want %s", got, tt.state)
					}
				}
				g.growTo("2Gi")
				strike()
				p := g.user("one", "c")
				_, err := g.setup(t, p)
				if (err == nil) != tt.mounted || err != nil && !strings.HasPrefix(err.Error(), `MountVolume.Setup failed while expanding volume failed for volume "pv-c" : `) {
					t.Fatalf("got %v", err)
				}
				expectFailed()

				// The pod is started nonetheless when the claim says that it is in vain, or when
				// the driver can do it again.
				if _, err := g.setup(t, p); err != nil {
					t.Fatal(err)
				}
				g.events = nil
				if tt.mounted { // not asked again while it is in use
					g.look(time.Hour)
					g.expectCalls("Stage", "Publish", "Expand")
					return
				}
				g.growTo("3Gi")
				strike()
				g.look(2 * time.Minute)
				expectFailed()
				g.expectEvents("p VolumeResizeFailed")
				g.growTo("3Gi")
				if n := g.look(0); n != 0 {
					t.Errorf("%d volumes were looked at before their time", n)
				}
				g.look(time.Second)
				g.expectStatus("3Gi", "")
				g.expectEvents("p FileSystemResizeSuccessful", "c FileSystemResizeSuccessful")
			})
		}
	}
}

func TestCSIVolumeOfADriverThatLeavesGrowthToOthers(t *testing.T) {
	g := newGrowable(t, func(c *csitest.Driver) { c.Expands = false })
	g.growTo("2Gi")
	p := g.user("one", "c")
	if _, err := g.setup(t, p); err == nil || !strings.Contains(err.Error(), "kubernetes.io/csi: NodeExpand is not supported by the CSI driver csi.example.com") {
		t.Errorf("got %v", err)
	}
	g.change(func(s *v1.PersistentVolumeClaimStatus) { s.AllocatedResources, s.AllocatedResourceStatuses = nil, nil })
	if _, err := g.setup(t, p); err != nil {
		t.Error(err)
	}
	reads := g.storage.reads.Load()
	g.look(time.Hour)
	if n := g.storage.reads.Load() - reads; n != 0 {
		t.Errorf("claims were read %d times though the driver does not care", n)
	}
	if slices.Contains(g.calls(), "Expand") {
		t.Error("the driver was asked")
	}
}

func TestCSIVolumeToReadDoesNotGrow(t *testing.T) {
	g := newGrowable(t, nil)
	g.growTo("2Gi")
	p := g.user("one", "c")
	p.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = true
	if _, err := g.setup(t, p); err != nil {
		t.Fatal(err)
	}
	g.look(time.Hour)
	g.expectCalls("Stage", "Publish")
	g.expectEvents("p FileSystemResizeFailed", "c FileSystemResizeFailed")
	g.expectStatus("1Gi", v1.PersistentVolumeClaimNodeResizePending, "FileSystemResizePending: ")
}

// Without an API server nobody says how large a volume is: the driver is asked when the pod comes,
// and whenever a pass finds the manifest changed.
func TestCSIVolumeOfAManifestGrows(t *testing.T) {
	g := newGrowable(t, nil)
	g.csi().config.ClaimsPeriod = 0
	g.storage.claims["c"].Status.Capacity, g.storage.claims["c"].ResourceVersion = nil, ""
	p := g.user("one", "c")
	if _, err := g.setup(t, p); err != nil {
		t.Fatal(err)
	}
	g.expectCalls("Stage", "Publish", "Expand")
	g.expectEvents() // nobody knows whether it became larger
	pv := g.pv.DeepCopy()
	pv.Spec.Capacity = sizeList("2Gi")
	g.storage.volumes[pv.Name] = pv
	if _, err := g.Prepare(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	g.look(0)
	g.look(0)
	g.expectCalls("Stage", "Publish", "Expand", "Expand")
	g.expectEvents("p FileSystemResizeSuccessful", "c FileSystemResizeSuccessful")
}
