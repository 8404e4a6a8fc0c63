package csi_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"berth/internal/cluster/kube"
	"berth/internal/cluster/kube/kubetest"
	"berth/internal/record/events/messagestest"
	"berth/internal/storage/csi"
	"berth/internal/storage/csi/csitest"
)

// cluster is an API server with one Node.
type cluster struct {
	*kube.Client
	server *kubetest.Server
	t      *testing.T
	node   *v1.Node
}

func newCluster(t *testing.T) cluster {
	t.Helper()
	server := kubetest.New()
	client, err := kube.Open(kube.Config{REST: server.Config(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	node, err := client.CreateNode(t.Context(), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u", Labels: map[string]string{"taken": "already"}}})
	if err != nil {
		t.Fatal(err)
	}
	return cluster{client, server, t, node}
}

// start runs Drivers of the node.
func (c cluster) start() *csi.Drivers {
	c.t.Helper()
	return c.startWith(csi.Config{})
}

// startWith runs Drivers of the node that have, beside what all have, what cfg says.
func (c cluster) startWith(cfg csi.Config) *csi.Drivers {
	c.t.Helper()
	registered, initialized := make(chan struct{}), make(chan struct{})
	close(registered)
	cfg.NodeName, cfg.Nodes, cfg.CSINodes, cfg.Registered = "n", c, c, func() <-chan struct{} { return registered }
	cfg.Initialized, cfg.Period, cfg.Log = func() { close(initialized) }, func(string) time.Duration { return time.Hour }, slog.New(slog.DiscardHandler)
	d, err := csi.New(cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	err = d.Health()
	messagestest.SawError(err)
	if err == nil || err.Error() != "CSINode is not yet initialized" {
		c.t.Errorf("health before the start: %v", err)
	}
	ctx, cancel := context.WithCancel(c.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	c.t.Cleanup(func() { cancel(); <-ended })
	<-initialized
	if err := d.Health(); err != nil {
		c.t.Error(err)
	}
	return d
}

func (c cluster) csiNode() *storagev1.CSINode {
	c.t.Helper()
	n, err := c.GetCSINode(c.t.Context(), "n")
	if err != nil {
		c.t.Fatal(err)
	}
	return n
}

func (c cluster) expectDrivers(want ...storagev1.CSINodeDriver) {
	c.t.Helper()
	if diff := cmp.Diff(want, c.csiNode().Spec.Drivers); diff != "" {
		c.t.Errorf("drivers of the CSINode (-want +got):\n%s", diff)
	}
}

func (c cluster) expectNodeIDs(want string) {
	c.t.Helper()
	n, err := c.GetNode(c.t.Context(), "n")
	if err != nil {
		c.t.Fatal(err)
	}
	if got := n.Annotations["csi.volume.kubernetes.io/nodeid"]; got != want {
		c.t.Errorf("node IDs: %s, want %s", got, want)
	}
}

// serve starts a driver and returns its endpoint.
func serve(t *testing.T, d *csitest.Driver) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "csi") // short, for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	d.Dir, d.Registry = dir, dir
	stop, err := d.Serve()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return filepath.Join(dir, "csi.sock")
}

var versions = []string{"0.3.0", "1.0.0", "9.0.0", "latest"}

func TestDriversAreToldOf(t *testing.T) {
	c := newCluster(t)
	d := c.start()
	owner := c.csiNode().OwnerReferences
	if len(owner) != 1 || owner[0].Kind != "Node" || owner[0].UID != c.node.UID {
		t.Errorf("owner of the CSINode: %v", owner)
	}
	a := serve(t, &csitest.Driver{Name: "a", NodeID: "id-a", MaxVolumes: 5, Topology: map[string]string{"zone": "z", "rack": "r"}})
	b := serve(t, &csitest.Driver{Name: "b", NodeID: "id-b"})
	changes := 0
	d.Subscribe(func() { changes++ })
	for _, err := range []error{d.RegisterPlugin(t.Context(), "a", a, versions), d.RegisterPlugin(t.Context(), "b", b, versions)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if changes != 2 {
		t.Errorf("the subscriber was called %d times for two drivers", changes)
	}
	first := storagev1.CSINodeDriver{Name: "a", NodeID: "id-a", TopologyKeys: []string{"rack", "zone"}, Allocatable: &storagev1.VolumeNodeResources{Count: ptr.To(int32(5))}}
	second := storagev1.CSINodeDriver{Name: "b", NodeID: "id-b"}
	c.expectDrivers(first, second)
	c.expectNodeIDs(`{"a":"id-a","b":"id-b"}`)
	n, err := c.GetNode(t.Context(), "n")
	if err != nil || n.Labels["zone"] != "z" || n.Labels["rack"] != "r" {
		t.Errorf("labels of the node: %v, %v", n.Labels, err)
	}

	// The next agent is told of the same drivers, and writes nothing.
	before := c.csiNode().ResourceVersion
	d = c.start()
	if err := d.RegisterPlugin(t.Context(), "a", a, versions); err != nil {
		t.Fatal(err)
	}
	if after := c.csiNode().ResourceVersion; after != before {
		t.Error("the CSINode was written though nothing changed")
	}

	// A driver that is gone is taken back by and by.
	d.DeregisterPlugin("a", a)
	deadline := time.After(time.Minute)
	for len(c.csiNode().Spec.Drivers) != 1 {
		select {
		case <-deadline:
			t.Fatal("the driver stays in the CSINode")
		case <-time.After(10 * time.Millisecond):
		}
	}
	c.expectDrivers(second)
	_, err = d.Driver("a")
	messagestest.SawError(err)
	if err == nil || err.Error() != "driver name a not found in the list of registered CSI drivers" {
		t.Errorf("got %v", err)
	}
}

func TestDriversThatAreRefused(t *testing.T) {
	c := newCluster(t)
	d := c.start()
	a := serve(t, &csitest.Driver{Name: "a", NodeID: "id-a"})
	if err := d.RegisterPlugin(t.Context(), "a", a, versions); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		driver   csitest.Driver
		versions []string
		want     string
	}{
		"no version":  {csitest.Driver{Name: "x"}, nil, `kubernetes.io/csi: RegisterPlugin for CSI driver "x" failed. Plugin returned an empty list for supported versions`},
		"old version": {csitest.Driver{Name: "x"}, []string{"0.3.0", "2.0.0"}, `failed. None of the versions specified ["0.3.0" "2.0.0"] are supported. err=`},
		"same name":   {csitest.Driver{Name: "a"}, versions, `failed. Another driver with the same name is already registered with a higher supported version: "1.0.0"`},
		"no node ID":  {csitest.Driver{Name: "x"}, versions, "driverNodeID must not be empty"},
		"elsewhere":   {csitest.Driver{Name: "x", NodeID: "x", Topology: map[string]string{"taken": "by x"}}, versions, `detected topology value collision: driver reported "taken":"by x" but existing label is "taken":"already"`},
	} {
		t.Run(name, func(t *testing.T) {
			err := d.RegisterPlugin(t.Context(), tt.driver.Name, serve(t, &tt.driver), tt.versions)
			messagestest.SawError(err)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v\nwant %s", err, tt.want)
			}
			if _, err := d.Driver("x"); err == nil {
				t.Error("it is registered all the same")
			}
			again := d.ValidatePlugin(tt.driver.Name, "", tt.versions)
			messagestest.SawError(again)
			if ofVersions := strings.Contains(tt.want, "failed."); (again != nil) != ofVersions {
				t.Errorf("before it registers: %v", again)
			} else if ofVersions && again.Error() != strings.Replace(err.Error(), "RegisterPlugin", "ValidatePlugin", 1) {
				t.Errorf("before it registers: %v\nwant the same as %v", again, err)
			}
		})
	}
	c.expectDrivers(storagev1.CSINodeDriver{Name: "a", NodeID: "id-a"})
	c.expectNodeIDs(`{"a":"id-a"}`)
}

// Where drivers are told of late, one serves while the API server is away, and is told of, or not
// any more, when it is back.
func TestDriversAreToldOfLate(t *testing.T) {
	c := newCluster(t)
	d := c.startWith(csi.Config{Late: true})
	c.server.Stop()
	drivers := map[string]string{}
	for _, name := range []string{"stays", "goes", "nameless"} {
		driver := &csitest.Driver{Name: name, NodeID: "id-" + name}
		if name == "nameless" {
			driver.NodeID = ""
		}
		drivers[name] = serve(t, driver)
		if err := d.RegisterPlugin(t.Context(), name, drivers[name], versions); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Driver(name); err != nil {
			t.Fatal(err)
		}
	}
	d.DeregisterPlugin("goes", drivers["goes"])
	c.server.Start()
	deadline := time.After(time.Minute)
	for len(c.csiNode().Spec.Drivers) == 0 {
		select {
		case <-deadline:
			t.Fatal("the driver is not in the CSINode")
		case <-time.After(10 * time.Millisecond):
		}
	}
	c.expectDrivers(storagev1.CSINodeDriver{Name: "stays", NodeID: "id-stays"})
	c.expectNodeIDs(`{"stays":"id-stays"}`)
}

// A limit that the driver has changed is told when somebody sees that the old one does not hold,
// and nothing else is.
func TestLimitsAreToldAnew(t *testing.T) {
	c := newCluster(t)
	d := c.start()
	a := serve(t, &csitest.Driver{Name: "a", NodeID: "id-a", MaxVolumes: 5})
	if err := d.RegisterPlugin(t.Context(), "a", a, versions); err != nil {
		t.Fatal(err)
	}
	node, err := c.GetNode(t.Context(), "n")
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Dir(a)
	stop, err := (&csitest.Driver{Name: "a", NodeID: "id-a", MaxVolumes: 3, Dir: dir, Registry: dir}).Serve() // in the place of the other one
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	d.Refresh("a")
	deadline := time.After(time.Minute)
	for *c.csiNode().Spec.Drivers[0].Allocatable.Count != 3 {
		select {
		case <-deadline:
			t.Fatal("the old limit stays in the CSINode")
		case <-time.After(10 * time.Millisecond):
		}
	}
	if after, err := c.GetNode(t.Context(), "n"); err != nil || after.ResourceVersion != node.ResourceVersion {
		t.Errorf("the Node was written: %v", err)
	}
}

// A CSINode that an earlier Node of the same name left is made anew.
func TestCSINodeOfAnotherNode(t *testing.T) {
	c := newCluster(t)
	foreign := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n", OwnerReferences: []metav1.OwnerReference{{Kind: "Node", Name: "n", UID: "earlier"}}}}
	foreign.Spec.Drivers = []storagev1.CSINodeDriver{{Name: "old", NodeID: "old"}}
	if _, err := c.CreateCSINode(t.Context(), foreign); err != nil {
		t.Fatal(err)
	}
	c.start()
	c.expectDrivers()
}

func TestFailuresThatMayHaveHadTheirEffect(t *testing.T) {
	for err, want := range map[error]bool{
		status.Error(codes.Unavailable, ""): true, status.Error(codes.DeadlineExceeded, ""): true, status.Error(codes.Aborted, ""): true,
		status.Error(codes.Internal, ""): false, status.Error(codes.InvalidArgument, ""): false, errors.New("broken pipe"): true,
		apierrors.NewBadRequest(""): true,
	} {
		if got := csi.IsUncertain(err); got != want {
			t.Errorf("%v: %t", err, got)
		}
	}
}
