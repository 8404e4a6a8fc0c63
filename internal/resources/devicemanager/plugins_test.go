package devicemanager_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"berth/internal/host/inotify"
	"berth/internal/observe/metrics/metricstest"
	"berth/internal/record/events/messagestest"
	"berth/internal/resources/devicemanager/devicetest"
)

func TestPluginsComeAndGo(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.expectCapacity(gpu, -1, -1)
		p := w.plugin(gpu, 3)
		stop := w.run(p)
		w.expectCapacity(gpu, 3, 3)
		if !w.Registered(gpu) || w.Health() != nil {
			t.Errorf("registered: %t, health: %v", w.Registered(gpu), w.Health())
		}
		w.mustAdmit(newPod("u", 1))
		w.mustAdmit(newPod("v", 1))
		w.expectWoken()

		// A device of a pod falls ill, and recovers.
		if err := devicetest.MakeUnhealthy(p.Dir, "d1"); err != nil {
			t.Fatal(err)
		}
		p.Refresh()
		w.expectWoken("v")
		w.expectCapacity(gpu, 3, 2)
		if s := w.AllocatedResourcesStatus("v", "a"); len(s) != 1 || s[0].Name != gpu || len(s[0].Resources) != 1 || s[0].Resources[0].ResourceID != "d1" || s[0].Resources[0].Health != "Unhealthy" {
			t.Errorf("status: %v", s)
		}
		if s := w.AllocatedResourcesStatus("u", "a"); len(s) != 1 || s[0].Resources[0].Health != "Healthy" {
			t.Errorf("status: %v", s)
		}
		if got := len(w.AllocatableDevices()); got != 2 {
			t.Errorf("%d healthy devices", got)
		}
		if got := w.file().RegisteredDevices[gpu]; strings.Join(got, " ") != "d0 d2" {
			t.Errorf("healthy devices in the file: %v", got)
		}
		if err := devicetest.MakeHealthy(p.Dir, "d1"); err != nil {
			t.Fatal(err)
		}
		p.Refresh()
		w.expectWoken("v")

		// The plugin goes: everything is ill, and after five minutes there is nothing.
		stop()
		w.expectWoken("u", "v")
		w.expectCapacity(gpu, 3, 0)
		if w.Registered(gpu) {
			t.Error("still registered")
		}
		time.Sleep(5*time.Minute - time.Second)
		synctest.Wait()
		w.expectCapacity(gpu, 3, 0)
		time.Sleep(time.Second)
		synctest.Wait()
		w.expectCapacity(gpu, 0, 0)
		if ids, ok := w.file().RegisteredDevices[gpu]; !ok || len(ids) != 0 {
			t.Errorf("the file has of the resource that is gone: %q, %v; want that it has no device", ids, ok)
		}
		w.expectHas("u", "a", "d0")
		if got := w.Allocated()[gpu]; got != 2 {
			t.Errorf("allocated: %d", got)
		}
		expectError(t, w.admit(newPod("x", 1)), "cannot allocate unregistered device example.com/gpu")

		// It comes back.
		defer w.run(p)()
		w.expectCapacity(gpu, 3, 3)
		w.expectWoken("u", "v")
		w.mustAdmit(newPod("x", 1))
		w.expectHas("x", "a", "d2")
	})
}

// The list of the plugin before stays until the next one sends its own, and its end ends nothing.
func TestReregistration(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		old := w.plugin(gpu, 2)
		stopOld := w.run(old)
		next := w.plugin(gpu, 3)
		next.Endpoint = "next.sock"
		if err := devicetest.Break(next.Dir, "ListAndWatch", devicetest.Hang, 0); err != nil {
			t.Fatal(err)
		}
		stop := w.run(next)
		w.expectCapacity(gpu, 2, 2)
		stopOld()
		synctest.Wait()
		w.expectCapacity(gpu, 2, 2)
		if !w.Registered(gpu) {
			t.Error("the end of the old plugin ended the new one")
		}
		stop()
		defer w.run(next)()
		w.expectCapacity(gpu, 3, 3)
	})
}

func TestRegistrationsThatAreRefused(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		for _, tc := range []struct{ resource, endpoint, want string }{
			{"cpu", "", `the ResourceName "cpu" is invalid`},
			{"kubernetes.io/x", "", `the ResourceName "kubernetes.io/x" is invalid`},
			{gpu, "../x.sock", `the endpoint "../x.sock" of the device plugin of example.com/gpu must be the name of a socket in ` + w.dir},
			{gpu, "/x.sock", `the endpoint "/x.sock" of the device plugin of example.com/gpu must be the name of a socket in ` + w.dir},
			{gpu, "none.sock", "connect to the device plugin of example.com/gpu: connect none.sock: no such file or directory"},
		} {
			p := w.plugin(tc.resource, 1)
			p.Endpoint = tc.endpoint
			expectError(t, w.register(p), "rpc error: code = Unknown desc = "+tc.want)
		}
		p := w.plugin(gpu, 1)
		p.Version = "v1alpha"
		expectError(t, w.register(p), `rpc error: code = Unknown desc = requested API version "v1alpha" is not supported by kubelet. Supported version is ["v1beta1"]`)
		p.Version = ""
		if err := devicetest.Break(p.Dir, "GetDevicePluginOptions", devicetest.Hang, 0); err != nil {
			t.Fatal(err)
		}
		defer w.serve(p)()
		began := time.Now()
		err := w.register(p)
		if err == nil || !strings.Contains(err.Error(), "failed to get device plugin options: resource example.com/gpu: rpc error: code = DeadlineExceeded") {
			t.Error(err)
		} else {
			messagestest.SawGRPC(err)
		}
		if took := time.Since(began); took != 10*time.Second {
			t.Errorf("took %v", took)
		}
		w.expectCapacity(gpu, -1, -1)
		metricstest.Expect(t, w.registry, map[string]float64{
			`kubelet_device_plugin_registration_total{resource_name=""}`: 2, `kubelet_device_plugin_registration_total{resource_name="example.com/gpu"}`: 5,
		})
	})
}

func TestThroughThePluginWatcher(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		expectError(t, w.ValidatePlugin(gpu, "/s", []string{"v1alpha", "v2"}), `requested API version ["v1alpha" "v2"] is not supported by kubelet. Supported version is ["v1beta1"]`)
		expectError(t, w.ValidatePlugin("cpu", "/s", []string{"v1beta1"}), `the ResourceName "cpu" is invalid`)
		if err := w.ValidatePlugin(gpu, "/s", []string{"v2", "v1beta1"}); err != nil {
			t.Error(err)
		}
		p := w.plugin(gpu, 2)
		stop := w.serve(p)
		defer stop()
		socket := filepath.Join(w.dir, p.EndpointName())
		if err := w.RegisterPlugin(t.Context(), gpu, socket, nil); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		w.expectCapacity(gpu, 2, 2)
		w.DeregisterPlugin(gpu, "/another")
		w.expectCapacity(gpu, 2, 2)
		w.DeregisterPlugin(gpu, socket)
		w.expectCapacity(gpu, 2, 0)
		if _, err := os.Stat(filepath.Join(w.dir, "DEPRECATION")); err != nil {
			t.Error(err)
		}
	})
}

// A resource whose plugin is gone for good stays known to the agents after this one: the Node may
// have been told of devices last, and then somebody must say that there are none.
func TestResourceThatIsGoneIsOnFile(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.run(w.plugin(gpu, 2))()
		for range 2 {
			time.Sleep(10 * time.Minute)
			w.restart()
			w.expectCapacity(gpu, 0, 0)
		}
	})
}

// Somebody removes the socket; plugins see a new one.
func TestSocketIsMended(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		socket := filepath.Join(w.dir, "kubelet.sock")
		p := w.plugin(gpu, 1)
		stop := w.run(p)
		if err := os.Remove(socket); err != nil {
			t.Fatal(err)
		}
		w.events <- inotify.Event{Path: socket, Deleted: true}
		synctest.Wait()
		if _, err := os.Lstat(socket); err != nil {
			t.Fatal(err)
		}
		w.expectCapacity(gpu, 1, 1)
		stop()
		defer w.run(p)()
		w.expectCapacity(gpu, 1, 1)

		// Another program takes the place, and leaves it.
		if err := os.WriteFile(socket+"2", nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(socket+"2", socket); err != nil {
			t.Fatal(err)
		}
		w.events <- inotify.Event{Path: socket}
		synctest.Wait()
		if err := w.Health(); err == nil || !strings.Contains(err.Error(), "kubelet.sock is not the one that was made here") {
			t.Errorf("health: %v", err)
		}
		if err := os.Remove(socket); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if err := w.Health(); err != nil {
			t.Errorf("health after it is gone: %v", err)
		}
		if err := w.register(p); err != nil {
			t.Error(err)
		}

		// The folder goes.
		if err := os.RemoveAll(w.dir); err != nil {
			t.Fatal(err)
		}
		w.events <- inotify.Event{Path: w.dir, Deleted: true}
		time.Sleep(time.Second)
		synctest.Wait()
		if _, err := os.Lstat(socket); err != nil {
			t.Error(err)
		}
		w.mustAdmit(newPod("u", 1))
		if got := len(w.file().PodDeviceEntries); got != 1 {
			t.Errorf("%d entries in the file", got)
		}
	})
}

func TestPluginsThatMisbehave(t *testing.T) {
	t.Run("too many devices", func(t *testing.T) {
		bubble(t, func(t *testing.T, w *world) {
			defer w.run(w.plugin(gpu, 40_000))()
			w.expectCapacity(gpu, 0, 0)
			if !strings.Contains(w.logged(), "it lists 40000 devices, more than the 32768 that one resource may have") {
				t.Errorf("log:\n%s", w.logged())
			}
		})
	})
	t.Run("a message of 10 MB", func(t *testing.T) {
		bubble(t, func(t *testing.T, w *world) {
			p := w.plugin(gpu, 2)
			p.Devices[0].ID = strings.Repeat("x", 10<<20)
			defer w.run(p)()
			w.expectCapacity(gpu, 0, 0)
			if !strings.Contains(w.logged(), "code = ResourceExhausted") {
				t.Errorf("log:\n%.2000s", w.logged())
			}
		})
	})
	t.Run("a flood of messages", func(t *testing.T) {
		bubble(t, func(t *testing.T, w *world) {
			p := w.plugin(gpu, 2)
			defer w.run(p)()
			began := time.Now()
			for range 200 {
				p.Refresh()
				synctest.Wait()
			}
			// What does not fit in the pipe waits there, and the last list counts in the end.
			if err := devicetest.MakeUnhealthy(p.Dir, "d0"); err != nil {
				t.Fatal(err)
			}
			p.Refresh()
			synctest.Wait()
			w.expectCapacity(gpu, 2, 2)
			for healthy := int64(2); healthy != 1; {
				if time.Sleep(time.Second); time.Since(began) > time.Hour {
					t.Fatal("the last list is never taken")
				}
				_, allocatable := w.Capacity()
				q := allocatable[gpu]
				healthy = q.Value()
			}
			if took := time.Since(began); took < 2*time.Minute {
				t.Errorf("200 lists were taken within %v", took)
			}
		})
	})
	t.Run("registers all the time", func(t *testing.T) {
		bubble(t, func(t *testing.T, w *world) {
			p := w.plugin(gpu, 2)
			defer w.run(p)()
			for range 500 {
				if err := w.register(p); err != nil {
					t.Fatal(err)
				}
			}
			w.expectCapacity(gpu, 2, 2)
			if n := strings.Count(w.logged(), "\n"); n > 100 {
				t.Errorf("%d lines of log", n)
			}
		})
	})
	t.Run("closes at once", func(t *testing.T) {
		bubble(t, func(t *testing.T, w *world) {
			p := w.plugin(gpu, 2)
			if err := devicetest.Break(p.Dir, "ListAndWatch", devicetest.Fail, codes.Internal); err != nil {
				t.Fatal(err)
			}
			defer w.run(p)()
			w.expectCapacity(gpu, 0, 0)
			if w.Registered(gpu) {
				t.Error("counts as registered")
			}
			if err := w.register(p); err != nil {
				t.Error(err)
			}
			w.expectCapacity(gpu, 2, 2)
		})
	})
	t.Run("very many resources", func(t *testing.T) {
		bubble(t, func(t *testing.T, w *world) {
			p := w.plugin(gpu, 1)
			defer w.serve(p)()
			var err error
			n := 0
			for ; n < 1000 && err == nil; n++ {
				p := &devicetest.Plugin{Resource: gpu + string(rune('a'+n/26)) + string(rune('a'+n%26)), Endpoint: p.EndpointName(), Dir: p.Dir}
				err = w.register(p)
			}
			if n != 257 || !strings.Contains(err.Error(), "256 extended resources of device plugins already") {
				t.Errorf("after %d: %v", n, err)
			}
		})
	})
}
