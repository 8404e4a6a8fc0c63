package csi_test

import (
	"log/slog"
	"os"
	"testing"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"berth/internal/record/events/messagestest"
	"berth/internal/storage/csi"
	"berth/internal/storage/csi/csitest"
)

// The tests of the package produce each of its messages that programs match.
func TestMain(m *testing.M) { os.Exit(messagestest.Main(m, "internal/storage/csi")) }

// A request without a volume or a path never reaches the driver.
func TestIncompleteRequests(t *testing.T) {
	drivers := newDrivers(t)
	d := &csitest.Driver{Name: "a", NodeID: "n"}
	if err := drivers.RegisterPlugin(t.Context(), "a", serve(t, d), versions); err != nil {
		t.Fatal(err)
	}
	driver, err := drivers.Driver("a")
	if err != nil {
		t.Fatal(err)
	}
	calls := map[string]func(id, path string) error{
		"staging target": func(id, path string) error {
			return driver.Stage(t.Context(), &csiapi.NodeStageVolumeRequest{VolumeId: id, StagingTargetPath: path})
		},
		"target": func(id, path string) error {
			return driver.Publish(t.Context(), &csiapi.NodePublishVolumeRequest{VolumeId: id, TargetPath: path})
		},
		"volume": func(id, path string) error { _, err := driver.Stats(t.Context(), id, path); return err },
	}
	for what, call := range calls {
		for want, err := range map[string]error{"missing volume id": call("", d.Dir), "missing " + what + " path": call("v", "")} {
			messagestest.SawGRPC(err)
			if s := status.Convert(err); s.Code() != codes.InvalidArgument || s.Message() != want {
				t.Errorf("%s: got %v, want %s", what, err, want)
			}
		}
	}
	undo := map[string]error{
		"missing target path":         driver.Unpublish(t.Context(), "v", ""),
		"missing staging target path": driver.Unstage(t.Context(), "v", ""),
	}
	for want, err := range undo {
		if s := status.Convert(err); s.Message() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func newDrivers(t *testing.T) *csi.Drivers {
	t.Helper()
	drivers, err := csi.New(csi.Config{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return drivers
}
