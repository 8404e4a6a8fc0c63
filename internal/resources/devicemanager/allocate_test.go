package devicemanager_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"

	"berth/internal/checkpoint/checkpointtest"
	"berth/internal/observe/metrics/metricstest"
	"berth/internal/pod"
	"berth/internal/resources/devicemanager"
	"berth/internal/resources/devicemanager/devicetest"
	"berth/internal/resources/topologymanager"
)

func TestAllocation(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		p := w.plugin(gpu, 5)
		p.CDI, p.Mount, p.PreStarts = "example.com/device", "/srv", true
		defer w.run(p)()
		u := newPod("u", 2, 0, 1)
		w.mustAdmit(u)
		w.expectHas("u", "a", "d0 d1")
		w.expectHas("u", "b", "")
		w.expectHas("u", "c", "d2")
		w.expectCalls(p, "Allocate d0,d1; Allocate d2")
		got, err := w.Options(t.Context(), u, &u.Spec.Containers[0])
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Envs) != 1 || got.Envs[0].Key != "EXAMPLE_COM_GPU" || string(got.Envs[0].Value) != "d0,d1" || len(got.Devices) != 2 || got.Devices[1].HostPath != "/dev/null" ||
			got.Devices[1].ContainerPath != "/dev/d1" || got.Devices[1].Permissions != "rw" || len(got.Mounts) != 1 || got.Mounts[0].HostPath != "/srv" || !got.Mounts[0].Readonly ||
			len(got.CDIDevices) != 2 || got.CDIDevices[0].Name != "example.com/device=d0" || got.Annotations[gpu] != "d0,d1" {
			t.Errorf("options: %v", got)
		}
		w.expectCalls(p, "PreStartContainer d0,d1")
		if got, err := w.Options(t.Context(), u, &u.Spec.Containers[1]); err != nil || len(got.Devices) != 0 {
			t.Errorf("of a container without devices: %v, %v", got, err)
		}

		expectError(t, w.admit(newPod("v", 1, 2)), "requested number of devices unavailable for example.com/gpu. Requested: 2, Available: 1")
		w.expectHas("v", "a", "")
		w.mustAdmit(newPod("v", 2))
		expectError(t, w.admit(newPod("x", 1)), "requested number of devices unavailable for example.com/gpu. Requested: 1, Available: 0")
		w.Release("u")
		w.mustAdmit(newPod("x", 3))
		w.expectHas("x", "a", "d0 d1 d2")
		w.Retain(map[pod.UID]bool{"x": true})
		if got := w.file().PodDeviceEntries; len(got) != 1 || got[0].PodUID != "x" {
			t.Errorf("in the file: %v", got)
		}
		if entries := w.journal.Read("default", "x"); len(entries) < 2 || entries[len(entries)-2].Decision != "give example.com/gpu: d0, d1, d2" || !strings.HasPrefix(entries[len(entries)-2].Why, "it asks for 3; healthy and free are ") {
			t.Errorf("journal: %v", entries)
		}
		w.Release("x")
		if last := w.journal.Read("default", "x"); last[len(last)-1].Decision != "take back example.com/gpu: d0, d1, d2" {
			t.Errorf("journal: %v", last[len(last)-1])
		}
	})
}

func TestAllocationNearHints(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		p := w.plugin(gpu, 6)
		defer w.run(p)()
		u := newPod("u", 2)
		c := &u.Spec.Containers[0]
		want := topologymanager.Hints{gpu: {{Nodes: 1, Preferred: true}, {Nodes: 2, Preferred: true}, {Nodes: 3}}}
		if diff := cmp.Diff(want, w.Hints(u, c)); diff != "" {
			t.Errorf("hints (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(want, w.PodHints(u)); diff != "" {
			t.Errorf("hints of the pod (-want +got):\n%s", diff)
		}
		if err := w.Allocate(u, c, topologymanager.Hint{Nodes: 2, Preferred: true}); err != nil {
			t.Fatal(err)
		}
		w.expectHas("u", "a", "d1 d3")
		want = topologymanager.Hints{gpu: {{Nodes: 2, Preferred: true}, {Nodes: 3}}}
		if diff := cmp.Diff(want, w.Hints(u, c)); diff != "" {
			t.Errorf("hints of what it has (-want +got):\n%s", diff)
		}
		w.restart() // no plugin, but the file says where they lie
		want = topologymanager.Hints{gpu: {{Nodes: 2, Preferred: true}}}
		if diff := cmp.Diff(want, w.Hints(u, c)); diff != "" {
			t.Errorf("hints of what it has, after a restart (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(want, w.PodHints(u)); diff != "" {
			t.Errorf("hints of the pod, after a restart (-want +got):\n%s", diff)
		}
		if d := w.Devices("u", "a"); len(d) != 2 || len(d[0].Nodes) != 1 || d[0].Nodes[0] != 1 {
			t.Errorf("devices: %v", d)
		}
		if got := w.Hints(newPod("v", 1), &newPod("v", 1).Spec.Containers[0])[gpu]; got != nil {
			t.Errorf("hints of a resource without devices: %v", got)
		}
	})
}

func TestInitContainersLeaveTheirDevices(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		defer w.run(w.plugin(gpu, 4))()
		u := newPod("u", 2, 2)
		first, side := newPod("", 3).Spec.Containers[0], newPod("", 1).Spec.Containers[0]
		always := v1.ContainerRestartPolicyAlways
		first.Name, side.Name, side.RestartPolicy = "first", "side", &always
		u.Spec.InitContainers = []v1.Container{first, side}
		expectError(t, w.admit(u), "requested number of devices unavailable for example.com/gpu. Requested: 2, Available: 1")
		u.Spec.Containers = u.Spec.Containers[:1]
		w.mustAdmit(u)
		w.expectHas("u", "first", "d0 d1 d2")
		w.expectHas("u", "side", "d0")
		w.expectHas("u", "a", "d1 d2")
		if got := w.Allocated()[gpu]; got != 3 {
			t.Errorf("allocated: %d", got)
		}
	})
}

func TestPreferredAllocation(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		p := w.plugin(gpu, 6)
		p.Prefers = true
		stop := w.run(p)
		w.mustAdmit(newPod("u", 1))
		w.expectHas("u", "a", "d5")
		w.expectCalls(p, "GetPreferredAllocation; Allocate d5")

		// A plugin that does not answer costs one pod ten seconds.
		if err := devicetest.Break(p.Dir, "GetPreferredAllocation", devicetest.Hang, 0); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		w.mustAdmit(newPod("v", 1))
		w.mustAdmit(newPod("x", 1))
		if took := time.Since(began); took != 10*time.Second {
			t.Errorf("took %v", took)
		}
		w.expectHas("v", "a", "d0")
		w.expectHas("x", "a", "d1")
		w.expectCalls(p, "GetPreferredAllocation; Allocate d0; Allocate d1")
		if e := w.journal.Read("default", "v"); !strings.Contains(e[0].Decision, "without its device plugin, which is not asked again until it registers") || !strings.Contains(e[0].Error, "DeadlineExceeded") {
			t.Errorf("journal: %v", e)
		}
		stop()
		stop = w.run(p)
		defer func() { stop() }()
		w.mustAdmit(newPod("y", 1))
		w.expectHas("y", "a", "d4")

		// A device falls ill while the plugin is asked.
		if err := devicetest.Break(p.Dir, "GetPreferredAllocation", devicetest.Hang, 0); err != nil {
			t.Fatal(err)
		}
		done := make(chan error)
		go func() { done <- w.admit(newPod("z", 1)) }()
		synctest.Wait()
		if err := devicetest.MakeUnhealthy(p.Dir, "d2"); err != nil {
			t.Fatal(err)
		}
		p.Refresh()
		if err := <-done; err != nil {
			t.Error(err)
		}
		w.expectHas("z", "a", "d3")
	})
}

func TestAllocateFails(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		p := w.plugin(gpu, 2)
		p.PreStarts = true
		stop := w.run(p)
		if err := devicetest.Break(p.Dir, "Allocate", devicetest.Fail, codes.Internal); err != nil {
			t.Fatal(err)
		}
		expectError(t, w.admit(newPod("u", 1)), "rpc error: code = Internal desc = as the test wants it")
		w.expectHas("u", "a", "")

		// One that hangs is waited for until the caller gives up; meanwhile others go on.
		if err := devicetest.Break(p.Dir, "Allocate", devicetest.Hang, 0); err != nil {
			t.Fatal(err)
		}
		v := newPod("v", 1)
		if err := w.Allocate(v, &v.Spec.Containers[0], topologymanager.Hint{}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- w.Prepare(ctx, v) }()
		time.Sleep(time.Hour)
		w.mustAdmit(newPod("x", 1))
		cancel()
		if err := <-done; err == nil || !strings.Contains(err.Error(), "Canceled") {
			t.Errorf("canceled: %v", err)
		}
		if err := devicetest.Break(p.Dir, "PreStartContainer", devicetest.Fail, codes.Internal); err != nil {
			t.Fatal(err)
		}
		x := newPod("x", 1)
		_, err := w.Options(t.Context(), x, &x.Spec.Containers[0])
		expectError(t, err, "device plugin PreStartContainer rpc failed with err: rpc error: code = Internal desc = as the test wants it")
		if err := devicetest.Break(p.Dir, "PreStartContainer", devicetest.Hang, 0); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if _, err = w.Options(t.Context(), x, &x.Spec.Containers[0]); err == nil || time.Since(began) != 30*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		stop()
		synctest.Wait()
		_, err = w.Options(t.Context(), x, &x.Spec.Containers[0])
		expectError(t, err, "device plugin PreStartContainer rpc failed with err: the device plugin is not connected")
		expectError(t, w.admit(newPod("y", 1)), "no healthy devices present; cannot allocate unhealthy devices example.com/gpu")
		if got := metricstest.Values(t, w.registry)[`kubelet_device_plugin_alloc_duration_seconds_count{resource_name="example.com/gpu"}`]; got == 0 {
			t.Error("no call is counted")
		}
	})
}

// What an agent has given stays given, whatever has become of the plugin.
func TestRestart(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		p := w.plugin(gpu, 3)
		stop := w.run(p)
		u, v := newPod("u", 1), newPod("v", 1)
		w.mustAdmit(u)
		if err := w.Allocate(v, &v.Spec.Containers[0], topologymanager.Hint{}); err != nil { // and no Prepare
			t.Fatal(err)
		}
		w.expectCalls(p, "Allocate d0")
		w.restart()
		if w.load != nil || w.BeganWithoutFile() {
			t.Errorf("load: %v", w.load)
		}
		w.expectCapacity(gpu, 0, 0)
		w.expectHas("u", "a", "d0")
		w.mustAdmit(u)
		w.mustAdmit(v)
		_, err := w.Options(t.Context(), u, &u.Spec.Containers[0])
		expectError(t, err, "waiting for the device plugin of example.com/gpu to register")
		w.expectWoken()
		if err := devicetest.Break(p.Dir, "ListAndWatch", devicetest.Hang, 0); err != nil { // to be registered is enough
			t.Fatal(err)
		}
		if err := w.register(p); err != nil {
			t.Fatal(err)
		}
		w.expectWoken("u", "v")
		if o, err := w.Options(t.Context(), u, &u.Spec.Containers[0]); err != nil || len(o.Devices) != 1 {
			t.Errorf("%v, %v", o, err)
		}
		w.expectCalls(p, "") // its answer was kept
		if o, err := w.Options(t.Context(), v, &v.Spec.Containers[0]); err != nil || o.Annotations[gpu] != "d1" {
			t.Errorf("%v, %v", o, err)
		}
		w.expectCalls(p, "Allocate d1")

		// The plugin comes back with other devices.
		stop()
		w.restart()
		p.Devices = p.Devices[2:]
		defer w.run(p)()
		w.mustAdmit(u)
		if o, err := w.Options(t.Context(), u, &u.Spec.Containers[0]); err != nil || o.Annotations[gpu] != "d0" {
			t.Errorf("%v, %v", o, err)
		}
		w.mustAdmit(newPod("x", 1))
		w.expectHas("x", "a", "d2")
	})
}

func TestFileThatCannotBeRead(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		if !w.BeganWithoutFile() {
			t.Error("there was a file")
		}
		p := w.plugin(gpu, 2)
		defer w.run(p)()
		u := newPod("u", 1)
		w.mustAdmit(u)
		path := filepath.Join(w.dir, devicemanager.FileName)
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(strings.Replace(string(b), `"u"`, `"v"`, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		w.restart()
		if w.load == nil || !strings.Contains(w.load.Error(), "allocations of devices from before are lost: "+path+": its checksum is ") || !w.BeganWithoutFile() {
			t.Errorf("load: %v", w.load)
		}
		if _, err := os.Stat(path + ".corrupt"); err != nil {
			t.Error(err)
		}
		w.expectHas("u", "a", "")
		// Its pod runs; the next of its containers gets devices anew.
		if err := w.register(p); err != nil {
			t.Fatal(err)
		}
		if o, err := w.Options(t.Context(), u, &u.Spec.Containers[0]); err != nil || o.Annotations[gpu] != "d0" {
			t.Errorf("%v, %v", o, err)
		}
	})
}

func TestDiskIsFull(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		defer w.run(w.plugin(gpu, 2))()
		w.mustAdmit(newPod("u", 1))
		mend := checkpointtest.Full(t, w.dir, 0)
		if err := w.admit(newPod("v", 1)); err == nil || !strings.Contains(err.Error(), "free space on its file system") {
			t.Error(err)
		}
		w.expectHas("v", "a", "")
		w.Release("u")
		if w.Persistence() == nil {
			t.Error("nothing is said")
		}
		mend()
		time.Sleep(time.Minute)
		if got := w.file().PodDeviceEntries; len(got) != 0 || w.Persistence() != nil {
			t.Errorf("in the file: %v, %v", got, w.Persistence())
		}
	})
}
