package devicemanager_test

import (
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/resources/devicemanager"
	"berth/internal/resources/devicemanager/devicetest"
)

// What is healthy, given and free of a resource, while its plugin comes, goes and is forgotten.
func TestResources(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		expect := func(when string, want ...devicemanager.Resource) {
			t.Helper()
			if diff := cmp.Diff(want, w.Resources()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", when, diff)
			}
		}
		expect("before there is a plugin")
		p := w.plugin(gpu, 4)
		stop := w.run(p)
		w.mustAdmit(newPod("u", 2))
		if err := devicetest.MakeUnhealthy(p.Dir, "d3"); err != nil {
			t.Fatal(err)
		}
		p.Refresh()
		w.expectWoken()
		socket := filepath.Join(w.dir, p.EndpointName())
		expect("with one", devicemanager.Resource{Name: gpu, Devices: 4, Healthy: 3, Given: 2, Free: 1, Plugin: socket})

		stop()
		w.expectWoken("u")
		gone := time.Now()
		expect("while it is away", devicemanager.Resource{Name: gpu, Devices: 4, Given: 2, AwaySince: &gone})
		time.Sleep(6 * time.Minute)
		synctest.Wait()
		expect("when it is forgotten", devicemanager.Resource{Name: gpu, Given: 2})
		w.Release("u")
		expect("when nobody has any", devicemanager.Resource{Name: gpu})
	})
}
