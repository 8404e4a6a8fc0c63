package node

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/internal/observe/metrics/metricstest"
)

const ready = "True kubelet is posting ready status"

func TestNewRefuses(t *testing.T) {
	tests := map[string]func(*Config){
		"Settings.Name": func(c *Config) { c.Settings.Name = "" },
		"Recorder":      func(c *Config) { c.Recorder = nil },
		"LabelsFile":    func(c *Config) { c.LabelsFile = "" },
		"LeaseDuration": func(c *Config) { c.LeaseDuration = time.Millisecond },
	}
	for field, broken := range tests {
		t.Run(field, func(t *testing.T) {
			cfg := newWorld(t).cfg
			broken(&cfg)
			if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), field) {
				t.Errorf("New = %v, want an error that names %s", err, field)
			}
		})
	}
}

func TestRegistersNewNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry, now := prometheus.NewRegistry(), time.Now()
		w := newWorld(t, func(c *Config) {
			c.Metrics, c.Booted, c.Started = registry, now.Add(-time.Minute), now.Add(-time.Second)
		})
		if early := metricstest.Values(t, registry); len(early) > 0 {
			t.Errorf("a start that has not come so far: %v", early)
		}
		w.start(t)
		synctest.Wait()
		select {
		case <-w.Current.Registered():
		default:
			t.Fatal("not registered")
		}
		if diff := cmp.Diff(map[string]float64{
			"kubelet_node_startup_pre_kubelet_duration_seconds": 59, "kubelet_node_startup_pre_registration_duration_seconds": 1,
			"kubelet_node_startup_registration_duration_seconds": 0, "kubelet_node_startup_post_registration_duration_seconds": 0,
			"kubelet_node_startup_duration_seconds": 60,
		}, metricstest.Values(t, registry)); diff != "" {
			t.Errorf("the start of the node (-want +got):\n%s", diff)
		}
		n, _ := w.api.snapshot()
		if diff := cmp.Diff([]string{ready}, w.api.history()); diff != "" {
			t.Errorf("Ready as written (-want +got):\n%s", diff)
		}
		if w.Current.UID() != n.UID || w.Current.UID() == "" {
			t.Errorf("UID = %q, want %q", w.Current.UID(), n.UID)
		}
		want := []string{
			"Normal Starting Starting kubelet.",
			"Normal NodeHasSufficientMemory Node n1 status is now: NodeHasSufficientMemory",
			"Normal NodeHasNoDiskPressure Node n1 status is now: NodeHasNoDiskPressure",
			"Normal NodeHasSufficientPID Node n1 status is now: NodeHasSufficientPID",
			"Normal NodeReady Node n1 status is now: NodeReady",
		}
		if diff := cmp.Diff(want, w.events.take()); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
		_, l := w.api.snapshot()
		wantOwner := []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "n1", UID: n.UID}}
		if diff := cmp.Diff(wantOwner, l.OwnerReferences); diff != "" {
			t.Errorf("owner of the lease (-want +got):\n%s", diff)
		}
		if *l.Spec.HolderIdentity != "n1" || *l.Spec.LeaseDurationSeconds != 40 {
			t.Errorf("lease = %+v", l.Spec)
		}
	})
}

func TestAPIServerAwayForHours(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.api.away()
		w.start(t)
		after(3 * time.Hour)
		if n := w.Current.Node(); n == nil || n.Labels[v1.LabelHostname] != "n1" || n.Status.Capacity.Cpu().Value() != 4 {
			t.Errorf("stand-in = %+v, want the facts of the machine", n)
		}
		if w.Current.UID() != "" {
			t.Errorf("UID = %q before the API server told it", w.Current.UID())
		}
		if got, most := w.api.count("CreateNode"), int(3*time.Hour/registerRetry.Cap)+10; got > most {
			t.Errorf("CreateNode was called %d times, want at most %d", got, most)
		}
		w.api.back()
		after(registerRetry.Cap)
		if n, l := w.api.snapshot(); n == nil || l == nil {
			t.Errorf("node = %v, lease = %v after the API server came back", n, l)
		}

		// And away again, with the Node registered.
		w.api.away()
		after(3 * time.Hour)
		tries := w.api.count("GetNode")
		if most := 2*statusTries*int(3*time.Hour/DefaultUpdateFrequency) + 10; tries > most {
			t.Errorf("GetNode was called %d times, want at most %d", tries, most)
		}
		w.api.back()
		before, _ := w.api.snapshot()
		after(11 * time.Second)
		n, l := w.api.snapshot()
		if n.ResourceVersion == before.ResourceVersion {
			t.Error("the status was not written again after the API server came back")
		}
		if age := time.Since(l.Spec.RenewTime.Time); age > 11*time.Second {
			t.Errorf("the lease is %v old", age)
		}
	})
}

func TestTakesOverExistingNode(t *testing.T) {
	forbidden := apierrors.NewForbidden(nodesResource, "n1", errors.New("may not create"))
	for name, refuse := range map[string]func(*fakeAPI){
		"already exists": func(*fakeAPI) {},
		"forbidden":      func(a *fakeAPI) { a.fail(forbidden, -1, "CreateNode") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, func(c *Config) { c.Settings.Labels = map[string]string{"mine": "new"} })
				w.existing(func(n *v1.Node) {
					n.Labels = map[string]string{"mine": "old", "theirs": "x", v1.LabelArchStable: "sparc"}
					n.Annotations = nil
					n.Spec.Taints = []v1.Taint{{Key: "theirs"}}
					n.Status.Capacity["hugepages-1Gi"] = resource.MustParse("1Gi")
				})
				refuse(w.api)
				w.start(t)
				synctest.Wait()
				n, _ := w.api.snapshot()
				want := w.wanted()
				want["mine"], want["theirs"] = "old", "x"
				if diff := cmp.Diff(want, n.Labels); diff != "" {
					t.Errorf("labels (-want +got):\n%s", diff)
				}
				if n.Annotations[annotationAttach] != "true" {
					t.Errorf("annotations = %v", n.Annotations)
				}
				if _, ok := n.Status.Capacity["hugepages-1Gi"]; ok {
					t.Error("a size of huge pages that the machine has not is still there")
				}
				if diff := cmp.Diff([]v1.Taint{{Key: "theirs"}}, n.Spec.Taints); diff != "" {
					t.Errorf("taints (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// wanted are the labels of a Node that is registered anew.
func (w *world) wanted() map[string]string {
	return generateNode(&w.cfg.Settings, &Facts{}, time.Now()).Labels
}

// A kubelet left devices on the Node, which nobody offers any more. Pods are not to be admitted by
// them, whatever becomes of the correction; what is advertised by hand afterwards stays.
func TestTakeOverZeroesDevices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const gpu = "example.com/gpu"
		w := newWorld(t)
		w.existing(func(n *v1.Node) {
			n.Status.Capacity, n.Status.Allocatable = quantities(gpu, "4"), quantities(gpu, "4")
		})
		amounts := func(n *v1.Node) string {
			capacity, allocatable := n.Status.Capacity[gpu], n.Status.Allocatable[gpu]
			return capacity.String() + " " + allocatable.String()
		}
		w.api.fail(errors.New("no answer"), -1, "PatchNodeStatus")
		w.start(t)
		before, _ := w.api.snapshot()
		w.Current.Observe(before)
		synctest.Wait()
		if got := amounts(w.Current.Node()); got != "0 0" {
			t.Errorf("pods are admitted by %s devices before the correction, want 0 0", got)
		}
		w.api.back()
		after(time.Minute)
		n, _ := w.api.snapshot()
		if got := amounts(n); got != "0 0" {
			t.Errorf("devices of the kubelet: %s, want 0 0", got)
		}
		w.Current.Observe(w.api.change(func(n *v1.Node) { n.Status.Capacity[gpu] = resource.MustParse("3") }))
		after(time.Minute)
		if n, _ = w.api.snapshot(); amounts(n) != "3 3" || amounts(w.Current.Node()) != "3 3" {
			t.Errorf("advertised by hand: %s, and pods are admitted by %s, want 3 3", amounts(n), amounts(w.Current.Node()))
		}
	})
}

// What is advertised by hand stays when it is known which devices an agent before had: they are not
// among it.
func TestTakeOverKeepsWhatOthersAdvertise(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const gpu, dongle = "example.com/gpu", "example.com/dongle"
		w := newWorld(t, func(c *Config) {
			c.Sources.DevicesForgotten = func() bool { return false }
			c.Sources.Devices = func() Devices { return Devices{quantities(gpu, "0"), quantities(gpu, "0")} } // as none has registered yet
		})
		w.existing(func(n *v1.Node) {
			n.Status.Capacity, n.Status.Allocatable = quantities(gpu, "4", dongle, "3"), quantities(gpu, "4", dongle, "3")
		})
		w.start(t)
		before, _ := w.api.snapshot()
		w.Current.Observe(before)
		synctest.Wait()
		if got := w.Current.Node().Status.Allocatable[dongle]; got.String() != "3" {
			t.Errorf("pods are admitted by %s at the start, want 3", got.String())
		}
		after(time.Minute)
		n, _ := w.api.snapshot()
		for name, want := range map[v1.ResourceName]string{gpu: "0", dongle: "3"} {
			if got := n.Status.Capacity[name]; got.String() != want {
				t.Errorf("the Node has %s of %s, want %s", got.String(), name, want)
			}
		}
	})
}

func TestRestHour(t *testing.T) {
	for name, watched := range map[string]func(*world){
		"with a watch": func(w *world) { n, _ := w.api.snapshot(); w.Current.Observe(n) },
		"without one":  func(*world) {},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.start(t)
				synctest.Wait()
				watched(w)
				w.events.take()
				gets := w.api.count("GetNode")
				after(time.Hour)
				if got := len(w.api.history()) - 1; got < 10 || got > 12 {
					t.Errorf("the status was written %d times in an hour of rest, want one per 5 minutes", got)
				}
				if got := w.api.count("UpdateLease"); got < 340 || got > 360 {
					t.Errorf("the lease was renewed %d times in an hour, want one per 10 s", got)
				}
				if got := w.api.count("GetNode") - gets; name == "with a watch" && got != 0 {
					t.Errorf("the Node was read %d times although it is watched", got)
				}
				if got := w.events.take(); len(got) != 0 {
					t.Errorf("events at rest: %v", got)
				}
				last, _ := w.api.snapshot()
				c := last.Status.Conditions[findCondition(last.Status.Conditions, v1.NodeReady)]
				if !c.LastHeartbeatTime.After(c.LastTransitionTime.Time) {
					t.Errorf("heartbeat %v is not after the transition %v", c.LastHeartbeatTime, c.LastTransitionTime)
				}
			})
		})
	}
}

func TestReadinessIsToldAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start(t)
		synctest.Wait()
		w.events.take()
		after(3 * time.Second)
		w.machine.set(func(m *machine) { m.problem = errors.New("container runtime is down") })
		w.Current.Wake()
		synctest.Wait()
		after(time.Second)
		w.machine.set(func(m *machine) { m.problem = nil })
		w.Current.Wake()
		synctest.Wait()
		if diff := cmp.Diff([]string{ready, "False container runtime is down", ready}, w.api.history()); diff != "" {
			t.Errorf("Ready as written (-want +got):\n%s", diff)
		}
		want := []string{"Normal NodeNotReady Node n1 status is now: NodeNotReady", "Normal NodeReady Node n1 status is now: NodeReady"}
		if diff := cmp.Diff(want, w.events.take()); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
	})
}

func TestFastPathToReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.machine.problem = errors.New("no network")
		w.start(t)
		after(1500 * time.Millisecond)
		w.machine.set(func(m *machine) { m.problem = nil })
		after(fastPeriod)
		if diff := cmp.Diff([]string{"False no network", ready}, w.api.history()); diff != "" {
			t.Errorf("Ready as written (-want +got):\n%s", diff)
		}
	})
}

// A restarted agent does not know at once that all is well, and says nothing until it does.
func TestRestartKeepsReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.existing()
		w.machine.problem = errors.New("container runtime status check may not have completed yet")
		w.start(t)
		after(25 * time.Second)
		if got := w.api.history(); len(got) != 0 {
			t.Errorf("Ready was written while the checks were not done: %v", got)
		}
		w.machine.set(func(m *machine) { m.problem = nil })
		after(fastPeriod)
		if diff := cmp.Diff([]string{ready}, w.api.history()); diff != "" {
			t.Errorf("Ready as written (-want +got):\n%s", diff)
		}
		n, _ := w.api.snapshot()
		if c := n.Status.Conditions[findCondition(n.Status.Conditions, v1.NodeReady)]; !c.LastTransitionTime.Before(&c.LastHeartbeatTime) {
			t.Errorf("Ready has the transition %v at the heartbeat %v", c.LastTransitionTime, c.LastHeartbeatTime)
		}
	})
}

func TestRestartWithoutRuntimeBecomesNotReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.existing()
		w.machine.problem = errors.New("container runtime is down")
		w.start(t)
		after(settleLimit + 11*time.Second)
		if diff := cmp.Diff([]string{"False container runtime is down"}, w.api.history()); diff != "" {
			t.Errorf("Ready as written (-want +got):\n%s", diff)
		}
	})
}

func TestStatusTries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var closed atomic.Int32
		w := newWorld(t, func(c *Config) { c.CloseIdleConnections = func() { closed.Add(1) } })
		w.start(t)
		synctest.Wait()
		n, _ := w.api.snapshot()
		w.Current.Observe(n)
		gets := w.api.count("GetNode")
		w.machine.set(func(m *machine) { m.facts.CPUs = 8 })
		w.api.fail(errAway, statusTries-1, "PatchNodeStatus")
		w.Current.Wake()
		synctest.Wait()
		if got := w.api.count("PatchNodeStatus"); got != statusTries {
			t.Errorf("patched %d times, want %d", got, statusTries)
		}
		if got := w.api.count("GetNode") - gets; got != statusTries-1 {
			t.Errorf("read %d times, want each time but the first, which has the watch's", got)
		}
		if got := closed.Load(); got != statusTries-2 {
			t.Errorf("idle connections closed %d times, want from the second failure on", got)
		}
		if n, _ = w.api.snapshot(); n.Status.Capacity.Cpu().Value() != 8 {
			t.Errorf("capacity = %v", n.Status.Capacity)
		}
	})
}

func TestRebootedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.existing(func(n *v1.Node) { n.Status.NodeInfo.BootID = "boot-0" })
		w.start(t)
		after(time.Hour)
		want := []string{"Normal Starting Starting kubelet.", "Warning Rebooted Node n1 has been rebooted, boot id: boot-1"}
		if diff := cmp.Diff(want, w.events.take()); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
	})
}

func TestCordon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start(t)
		synctest.Wait()
		w.events.take()
		w.Current.Observe(w.api.change(func(n *v1.Node) { n.Spec.Unschedulable = true }))
		synctest.Wait()
		w.Current.Observe(w.api.change(func(n *v1.Node) { n.Spec.Unschedulable = false }))
		synctest.Wait()
		want := []string{"Normal NodeNotSchedulable Node n1 status is now: NodeNotSchedulable", "Normal NodeSchedulable Node n1 status is now: NodeSchedulable"}
		if diff := cmp.Diff(want, w.events.take()); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
	})
}

func TestDeletedNodeStaysDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start(t)
		after(time.Minute)
		w.api.mu.Lock()
		w.api.node, w.api.lease = nil, nil
		w.api.mu.Unlock()
		w.Current.Observe(nil)
		if w.Current.UID() != "" {
			t.Errorf("UID = %q of a deleted Node", w.Current.UID())
		}
		after(time.Hour)
		if n, l := w.api.snapshot(); n != nil || l != nil {
			t.Errorf("node = %v, lease = %v: made again", n, l)
		}
		if got := w.api.count("CreateNode"); got != 1 {
			t.Errorf("CreateNode was called %d times, want once", got)
		}
	})
}

func TestDeletingNodeHasNoUID(t *testing.T) {
	w := newWorld(t)
	now := metav1.Now()
	w.Current.Observe(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "uid", DeletionTimestamp: &now}})
	if w.Current.UID() != "" {
		t.Errorf("UID = %q of a Node that is being deleted", w.Current.UID())
	}
}

func TestOlderNodeIsNotTaken(t *testing.T) {
	w := newWorld(t)
	node := func(uid types.UID, rv string) *v1.Node {
		return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: uid, ResourceVersion: rv}}
	}
	w.Current.Observe(node("uid-1", "10"))
	w.Current.Observe(node("uid-1", "9"))
	if got := w.Current.Node().ResourceVersion; got != "10" {
		t.Errorf("resource version = %s after an older one came late, want 10", got)
	}
	w.Current.Observe(node("uid-2", "3"))
	if got := w.Current.Node().UID; got != "uid-2" {
		t.Errorf("UID = %s, want that of the Node that was made again", got)
	}
}

func TestLabelsAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		stop := w.start(t)
		synctest.Wait()
		w.Current.Observe(w.api.change(func(n *v1.Node) { n.Labels["disk"] = "ssd" }))
		synctest.Wait()
		want, _ := w.api.snapshot()
		stop()

		next := newWorld(t, func(c *Config) { c.LabelsFile = w.cfg.LabelsFile })
		next.Load()
		if diff := cmp.Diff(want.Labels, next.Current.Node().Labels); diff != "" {
			t.Errorf("labels of the next process before the API server answered (-want +got):\n%s", diff)
		}
		other := newWorld(t, func(c *Config) { c.LabelsFile, c.Settings.Name = w.cfg.LabelsFile, "n2" })
		other.Load()
		if _, ok := other.Current.Node().Labels["disk"]; ok {
			t.Error("a node has the labels of another")
		}
	})
}

func TestUnregisteredWaitsForTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(c *Config) { c.Settings.RegisterNode = false })
		w.start(t)
		after(time.Minute)
		if n, l := w.api.snapshot(); n != nil || l != nil || w.api.count("CreateNode") != 0 {
			t.Fatalf("node = %v, lease = %v, want neither before somebody makes the Node", n, l)
		}
		w.api.mu.Lock()
		w.api.node = &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "uid-theirs", ResourceVersion: "1"}}
		w.api.mu.Unlock()
		after(time.Minute)
		n, l := w.api.snapshot()
		if !isReady(n.Status.Conditions) || l == nil || l.OwnerReferences[0].UID != "uid-theirs" {
			t.Errorf("node = %+v, lease = %+v", n.Status.Conditions, l)
		}
	})
}

func TestForeignConditionsAndTaintsStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.existing(func(n *v1.Node) {
			n.Status.Conditions = slices.Insert(n.Status.Conditions, 0, v1.NodeCondition{Type: "KernelDeadlock", Status: v1.ConditionFalse})
		})
		w.start(t)
		after(time.Hour)
		n, _ := w.api.snapshot()
		if i := findCondition(n.Status.Conditions, "KernelDeadlock"); i != 0 {
			t.Errorf("a condition of others is at %d: %v", i, n.Status.Conditions)
		}
	})
}

func TestRunEndsWhileTheAPIHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		hang := hangingNodes{w.api}
		w.cfg.Nodes = hang
		stop := w.start(t)
		after(time.Hour)
		stop()
	})
}

// hangingNodes answers nothing until the deadline.
type hangingNodes struct{ Nodes }

func (hangingNodes) GetNode(ctx context.Context, _ string) (*v1.Node, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (hangingNodes) CreateNode(ctx context.Context, _ *v1.Node) (*v1.Node, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestAddressesAreLookedUpSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lookups atomic.Int32
		w := newWorld(t, func(c *Config) {
			lookup := c.Sources.Network.Lookup
			c.Sources.Network.Lookup = func(ctx context.Context, host string) ([]netip.Addr, error) { lookups.Add(1); return lookup(ctx, host) }
		})
		w.start(t)
		after(time.Hour)
		if got := lookups.Load(); got < 10 || got > 13 {
			t.Errorf("the name was looked up %d times in an hour, want once per report", got)
		}
	})
}

func TestMachineHiccupKeepsCapacity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start(t)
		synctest.Wait()
		before, _ := w.api.snapshot()
		w.machine.set(func(m *machine) { m.facts, m.err = Machine{}, errors.New("no /proc") })
		after(time.Minute)
		n, _ := w.api.snapshot()
		if !maps.EqualFunc(before.Status.Capacity, n.Status.Capacity, resource.Quantity.Equal) {
			t.Errorf("capacity = %v, want %v", n.Status.Capacity, before.Status.Capacity)
		}
		if diff := cmp.Diff(before.Status.NodeInfo, n.Status.NodeInfo); diff != "" {
			t.Errorf("node info (-want +got):\n%s", diff)
		}
	})
}

func TestSourcesReachTheStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(c *Config) {
			c.Sources.Images = func(context.Context) ([]v1.ContainerImage, error) {
				return []v1.ContainerImage{{Names: []string{"a"}, SizeBytes: 1}}, nil
			}
			c.Sources.Devices = func() Devices {
				return Devices{Capacity: quantities("example.com/gpu", "2"), Allocatable: quantities("example.com/gpu", "1")}
			}
			c.Sources.VolumesInUse = func() []v1.UniqueVolumeName { return []v1.UniqueVolumeName{"v"} }
			c.Sources.Pressure = func() Pressure { return Pressure{Memory: true, Disk: true, PID: true} }
			c.Sources.Problems = func() []error { return []error{errors.New("PLEG is not healthy: x")} }
		})
		w.start(t)
		synctest.Wait()
		n, _ := w.api.snapshot()
		s := n.Status
		disk := s.Conditions[findCondition(s.Conditions, v1.NodeDiskPressure)].Status
		if len(s.Images) != 1 || len(s.VolumesInUse) != 1 || disk != v1.ConditionTrue {
			t.Errorf("images = %v, volumes in use = %v, disk pressure = %s", s.Images, s.VolumesInUse, disk)
		}
		capacity, allocatable := s.Capacity["example.com/gpu"], s.Allocatable["example.com/gpu"]
		if capacity.Value() != 2 || allocatable.Value() != 1 {
			t.Errorf("devices: capacity %v, allocatable %v", capacity, allocatable)
		}
		if diff := cmp.Diff([]string{"False PLEG is not healthy: x"}, w.api.history()); diff != "" {
			t.Errorf("Ready as written (-want +got):\n%s", diff)
		}
	})
}

// What a source cannot tell leaves the Node as it is, and the rest is reported.
func TestSourceFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(c *Config) {
			c.Sources.Images = func(context.Context) ([]v1.ContainerImage, error) { return nil, errors.New("no answer") }
			c.Sources.Network.Interfaces = func() ([]netip.Addr, error) { return nil, errors.New("no netlink") }
		})
		images := []v1.ContainerImage{{Names: []string{"a"}, SizeBytes: 1}}
		addresses := []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "192.0.2.7"}}
		w.existing(func(n *v1.Node) { n.Status.Images, n.Status.Addresses = images, addresses })
		w.start(t)
		after(time.Minute)
		n, _ := w.api.snapshot()
		if diff := cmp.Diff(images, n.Status.Images); diff != "" {
			t.Errorf("images (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(addresses, n.Status.Addresses); diff != "" {
			t.Errorf("addresses (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{ready}, w.api.history()); diff != "" {
			t.Errorf("Ready as written (-want +got):\n%s", diff)
		}
	})
}
