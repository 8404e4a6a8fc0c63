package dra_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	healthapi "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"

	"berth/internal/cluster/kube/kubetest"
	"berth/internal/observe/metrics/metricstest"
	"berth/internal/resources/dra"
	"berth/internal/resources/dra/dratest"
)

// A driver of the old version, and one that lists both, newest first.
func TestVersions(t *testing.T) {
	for versions, want := range map[string]string{"v1beta1.DRAPlugin": "v1beta1", "v1.DRAPlugin v1beta1.DRAPlugin": "v1", "future v1beta1.DRAPlugin v1.DRAPlugin": "v1beta1"} {
		t.Run(versions, func(t *testing.T) {
			inBubble(t, func(w *world) {
				d := w.driver("one.example.com")
				d.Versions = strings.Fields(versions)
				a := w.start(d)
				w.claim("a", []*driver{d}, "p")
				p := newPod("p", "a")
				w.prepare(a, p)
				w.unprepare(a, "p")
				calls, err := dratest.Calls(d.Dir)
				if err != nil || len(calls) != 2 || calls[0].Version != want || calls[1].Version != want {
					w.Errorf("calls %v, error %v, want two of %s", calls, err, want)
				}
			})
		})
	}
}

func TestEndpoints(t *testing.T) {
	inBubble(t, func(w *world) {
		old, fresh := w.driver("one.example.com"), w.driver("two.example.com")
		fresh.Driver.Name = old.Name // which is to take the place of the other
		a := w.start(old)
		w.fails(a.RegisterPlugin(w.Context(), old.Name, old.Socket(), old.Services()), "endpoint "+old.Socket()+" already registered for DRA driver plugin one.example.com")
		w.register(a, fresh)
		for i, step := range []struct {
			do         func()
			old, fresh int // calls
		}{
			{func() {}, 0, 1},
			{fresh.down, 1, 1},
			{func() { fresh.up(); pass(time.Minute) }, 1, 2},
			{func() { a.DeregisterPlugin(fresh.Name, fresh.Socket()) }, 2, 2},
			{func() { a.DeregisterPlugin(fresh.Name, fresh.Socket()) }, 3, 2},
		} {
			step.do()
			name := fmt.Sprintf("c%d", i)
			w.claim(name, []*driver{old}, "p")
			w.prepare(a, newPod("p", name))
			if len(old.calls()) != step.old || len(fresh.calls()) != step.fresh {
				w.Errorf("step %d: %d calls of the old one, %d of the new one, want %d and %d", i, len(old.calls()), len(fresh.calls()), step.old, step.fresh)
			}
		}
		a.DeregisterPlugin(old.Name, old.Socket())
		w.claim("last", []*driver{old}, "p")
		w.fails(a.Prepare(w.Context(), newPod("p", "last")), "prepare dynamic resources: DRA driver one.example.com is not registered")
		w.want("woken", a.woken(), "[]")
		w.register(a, old)
		w.want("woken", a.woken(), "[p]")
	})
}

func (w *world) slice(name, node string, d *driver) {
	kubetest.Put(w.API, &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourcev1.ResourceSliceSpec{NodeName: &node, Driver: d.Name}})
}

func (w *world) slices() (names []string) {
	for _, s := range kubetest.List[*resourcev1.ResourceSlice](w.API) {
		names = append(names, s.Name)
	}
	return names
}

// What drivers of before offer is withdrawn at the start, and what a driver offers when it has been
// away for 30 s.
func TestSlices(t *testing.T) {
	inBubble(t, func(w *world) {
		one, two := w.driver("one.example.com"), w.driver("two.example.com")
		w.slice("one-before", "here", one)
		w.slice("two-before", "here", two)
		w.slice("elsewhere", "there", one)
		a := w.start()
		w.want("slices", w.slices(), "[elsewhere]")
		w.register(a, one)
		w.register(a, two)
		w.slice("one", "here", one)
		w.slice("two", "here", two)
		pass(time.Hour)
		w.want("slices while all is well", w.slices(), "[elsewhere one two]")

		one.down()
		pass(20 * time.Second)
		one.up()
		pass(time.Minute)
		w.want("slices of a driver that was away for a moment", w.slices(), "[elsewhere one two]")

		one.down()
		pass(20 * time.Second)
		a.DeregisterPlugin(one.Name, one.Socket()) // does not begin the time anew
		pass(9 * time.Second)
		w.want("slices after 29 s", w.slices(), "[elsewhere one two]")
		pass(2 * time.Second)
		w.want("slices after 31 s", w.slices(), "[elsewhere two]")

		w.API.Stop()
		two.down()
		pass(time.Hour)
		w.API.Start()
		pass(5 * time.Minute)
		w.want("slices when the API server is back", w.slices(), "[elsewhere]")
		deletions := w.API.Count("deletecollection", "resourceslices")
		pass(time.Hour)
		w.want("deletions an hour later", w.API.Count("deletecollection", "resourceslices"), deletions)

		w.register(a, one) // which nobody can reach
		w.slice("one", "here", one)
		pass(31 * time.Second)
		w.want("slices of a driver that does not answer", w.slices(), "[elsewhere]")
	})
}

// An agent that could not withdraw anything at its start leaves what drivers offer that came
// meanwhile.
func TestSlicesAtALateStart(t *testing.T) {
	inBubble(t, func(w *world) {
		one, two := w.driver("one.example.com"), w.driver("two.example.com")
		w.API.Stop()
		w.start(one)
		w.slice("one", "here", one)
		w.slice("two-before", "here", two)
		pass(3 * time.Second)
		w.API.Start()
		pass(time.Minute)
		w.want("slices", w.slices(), "[one]")
	})
}

func health(status healthapi.HealthStatus, message string, seconds int64) *healthapi.NodeWatchResourcesResponse {
	return &healthapi.NodeWatchResourcesResponse{Devices: []*healthapi.DeviceHealth{{
		Device: &healthapi.DeviceIdentifier{PoolName: "here", DeviceName: "device"}, Health: status, Message: message, HealthCheckTimeoutSeconds: seconds,
	}}}
}

// statusOf returns the health of a container's devices as text.
func statusOf(a *agent, p *v1.Pod, container string) string {
	var out []string
	for _, s := range a.AllocatedResourcesStatus(p, container) {
		for _, r := range s.Resources {
			text := fmt.Sprintf("%s %s %s", s.Name, r.ResourceID, r.Health)
			if r.Message != nil {
				text += " " + *r.Message
			}
			out = append(out, text)
		}
	}
	return strings.Join(out, ", ")
}

func TestHealthOfDevices(t *testing.T) {
	const device = "claim:my-a one.example.com/device=a-device "
	inBubble(t, func(w *world) {
		d := w.driver("one.example.com")
		d.down()
		d.health = &healthServer{lists: make(chan *healthapi.NodeWatchResourcesResponse)}
		d.up()
		a := w.start(d)
		w.claim("a", []*driver{d}, "p")
		p := newPod("p", "a")
		p.Spec.InitContainers = []v1.Container{{Name: "init", Resources: p.Spec.Containers[0].Resources}}
		w.want("status before", statusOf(a, p, "main"), "")
		w.prepare(a, p)
		w.want("status of an init container", statusOf(a, p, "init"), "")
		w.want("status", statusOf(a, p, "main"), device+"Unknown")
		for _, step := range []struct {
			do    func()
			woken string
			want  string
		}{
			{func() { d.health.lists <- health(healthapi.HealthStatus_HEALTHY, "", 0) }, "[p]", "Healthy"},
			{func() { d.health.lists <- health(healthapi.HealthStatus_HEALTHY, "", 0) }, "[]", "Healthy"},
			{func() { d.health.lists <- health(healthapi.HealthStatus_UNHEALTHY, "hot", 10) }, "[p]", "Unhealthy hot"},
			{func() { pass(9 * time.Second) }, "[]", "Unhealthy hot"},
			{func() { pass(2 * time.Second) }, "[p]", "Unknown"}, // nobody has said anything for 11 s
			{func() { d.health.lists <- health(healthapi.HealthStatus_HEALTHY, "", 0) }, "[p]", "Healthy"},
			{func() { d.health.lists <- nil }, "[p]", "Unknown"}, // the stream ends
			{func() {
				pass(5 * time.Second)
				d.health.lists <- health(healthapi.HealthStatus_HEALTHY, "", 0)
			}, "[p]", "Healthy"},
			{func() { pass(2 * time.Second) }, "[]", "Healthy"}, // the file is written
		} {
			step.do()
			w.want("woken", a.woken(), step.woken)
			w.want("status", statusOf(a, p, "main"), device+step.want)
		}
		a.stop()
		a = w.start(d)
		w.want("status after a restart", statusOf(a, p, "main"), device+"Healthy")
		a.DeregisterPlugin(d.Name, d.Socket())
		pass(31 * time.Second)
		w.want("status without the driver", statusOf(a, p, "main"), device+"Unknown")
	})
}

// A driver without the service is asked once, and its devices are Unknown; one whose gate is off is
// not asked.
func TestHealthIsOptional(t *testing.T) {
	inBubble(t, func(w *world) {
		d := w.driver("one.example.com")
		a := w.start(d)
		w.claim("a", []*driver{d}, "p")
		p := newPod("p", "a")
		w.prepare(a, p)
		w.want("status", statusOf(a, p, "main"), "claim:my-a one.example.com/device=a-device Unknown")
		a.stop()
		w.config = func(c *dra.Config) { c.Reporting = dra.ReportNothing }
		a = w.start(d)
		w.want("status", statusOf(a, p, "main"), "")
	})
	inBubble(t, func(w *world) {
		w.config = func(c *dra.Config) { c.Reporting = dra.ReportNoMessages }
		d := w.driver("one.example.com")
		d.down()
		d.health = &healthServer{lists: make(chan *healthapi.NodeWatchResourcesResponse)}
		d.up()
		a := w.start(d)
		w.claim("a", []*driver{d}, "p")
		if err := dratest.SetDevices(d.Dir, "a", dratest.Device{Name: "device", CDI: []string{}}); err != nil {
			w.Fatal(err)
		}
		p := newPod("p", "a")
		w.prepare(a, p)
		d.health.lists <- health(healthapi.HealthStatus_UNHEALTHY, "hot", 10)
		synctest.Wait()
		w.want("status", statusOf(a, p, "main"), "claim:my-a one.example.com/here/device Unhealthy")
	})
}

func TestMetrics(t *testing.T) {
	inBubble(t, func(w *world) {
		one, two := w.driver("one.example.com"), w.driver("two.example.com")
		a := w.start(one, two)
		w.claim("a", []*driver{one, two}, "p")
		w.claim("b", []*driver{one}, "p")
		w.prepare(a, newPod("p", "a", "b"))
		if err := a.Prepare(w.Context(), newPod("q", "a")); err == nil {
			w.Error("a pod may use a claim that is not its own")
		}
		metricstest.Expect(w.T, w.Metrics, map[string]float64{
			`dra_resource_claims_in_use{driver_name="<any>"}`:                                                                                    2,
			`dra_resource_claims_in_use{driver_name="one.example.com"}`:                                                                          2,
			`dra_resource_claims_in_use{driver_name="two.example.com"}`:                                                                          1,
			`dra_operations_duration_seconds_count{is_error="false",operation_name="PrepareResources"}`:                                          1,
			`dra_operations_duration_seconds_count{is_error="true",operation_name="PrepareResources"}`:                                           1,
			`dra_grpc_operations_duration_seconds_count{driver_name="one.example.com",grpc_status_code="OK",method_name="NodePrepareResources"}`: 1,
		})
	})
}
