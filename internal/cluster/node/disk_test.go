package node

import (
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/checkpoint/checkpointtest"
)

// A node whose labels cannot be written reports as ever, and the next process knows those of
// before.
func TestDiskThatTakesNoLabels(t *testing.T) {
	checkpointtest.Each(t, func(t *testing.T, fail func(string) func()) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			stop := w.start(t)
			defer stop()
			label := func(value string) {
				w.Current.Observe(w.api.change(func(n *v1.Node) { n.Labels["disk"] = value }))
				after(time.Minute)
			}
			stored := func() string {
				labels, err := readLabels(w.cfg.LabelsFile, "n1")
				if err != nil {
					t.Fatal(err)
				}
				return labels["disk"]
			}
			synctest.Wait()
			label("ssd")
			mend := fail(filepath.Dir(w.cfg.LabelsFile))
			label("hdd")
			if w.Current.Node().Labels["disk"] != "hdd" || stored() != "ssd" {
				t.Errorf("the Node says %q, the file %q", w.Current.Node().Labels["disk"], stored())
			}
			mend()
			label("hdd2")
			if got := stored(); got != "hdd2" {
				t.Errorf("then the file says %q", got)
			}
		})
	})
}
