package csi_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"berth/internal/storage/csi"
	"berth/internal/storage/csi/csitest"
)

// Calls for a pod are known while they are under way, and those for nobody are not.
func TestWaits(t *testing.T) {
	drivers, err := csi.New(csi.Config{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	d := &csitest.Driver{Name: "a", NodeID: "n", Stages: true}
	if err := drivers.RegisterPlugin(t.Context(), "a", serve(t, d), versions); err != nil {
		t.Fatal(err)
	}
	driver, err := drivers.Driver("a")
	if err != nil {
		t.Fatal(err)
	}
	for _, uid := range []string{"", "u"} {
		if err := csitest.Break(d.Dir, "NodeStageVolume", csitest.Hang, codes.OK); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		began, ended := time.Now(), make(chan error, 1)
		calling := driver
		if uid != "" {
			calling = driver.For("u")
		}
		go func() {
			ended <- calling.Stage(ctx, &csiapi.NodeStageVolumeRequest{VolumeId: "vol-1", StagingTargetPath: d.Dir})
		}()
		for csitest.Broken(d.Dir, "NodeStageVolume") { // until the driver has the call
		}
		waits := drivers.Waits("u")
		switch {
		case uid == "" && len(waits) > 0:
			t.Errorf("a call for nobody is one for a pod: %+v", waits)
		case uid == "u":
			if len(waits) != 1 || len(drivers.Waits("other")) > 0 {
				t.Fatalf("waits %+v, of another pod %+v", waits, drivers.Waits("other"))
			}
			w := waits[0]
			if w.Since.Before(began) || w.Until.Sub(w.Since) != 2*time.Minute {
				t.Errorf("since %s, until %s; it began at %s", w.Since, w.Until, began)
			}
			w.Since, w.Until = time.Time{}, time.Time{}
			if w != (csi.Wait{Driver: "a", Call: "NodeStageVolume", Volume: "vol-1"}) {
				t.Errorf("waits for %+v", w)
			}
		}
		cancel()
		if err := <-ended; err == nil {
			t.Error("a call that was broken off has succeeded")
		}
		if waits := drivers.Waits("u"); len(waits) > 0 {
			t.Errorf("when the call is over: %+v", waits)
		}
	}
}
