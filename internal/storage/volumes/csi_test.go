package volumes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	mount "k8s.io/mount-utils"
	"k8s.io/utils/ptr"

	"berth/internal/pod"
	"berth/internal/record/events/messagestest"
	"berth/internal/storage/csi"
	"berth/internal/storage/csi/csitest"
)

// storageObjects are what an API server knows of storage.
type storageObjects struct {
	drivers     map[string]*storagev1.CSIDriver
	attachments map[string]*storagev1.VolumeAttachment
	secrets     map[string]*v1.Secret
}

func (s *storageObjects) CSIDriver(_ context.Context, name string) (*storagev1.CSIDriver, error) {
	return s.drivers[name], nil
}

func (s *storageObjects) GetVolumeAttachment(_ context.Context, name string) (*storagev1.VolumeAttachment, error) {
	if a := s.attachments[name]; a != nil {
		return a, nil
	}
	return nil, apierrors.NewNotFound(storagev1.Resource("volumeattachments"), name)
}

func (s *storageObjects) GetSecret(_ context.Context, namespace, name string) (*v1.Secret, error) {
	if o := s.secrets[namespace+"/"+name]; o != nil {
		return o, nil
	}
	return nil, apierrors.NewNotFound(v1.Resource("secrets"), name)
}

func (s *storageObjects) DriverToken(_ context.Context, p *v1.Pod, audience string, _ *int64) (string, time.Time, error) {
	return "token of " + p.Name + " for " + audience, time.Unix(1_700_000_000, 0), nil
}

// driven is a Manager with one CSI driver.
type driven struct {
	*Manager
	t       *testing.T
	fake    *mount.FakeMounter
	storage *storage
	objects *storageObjects
	drivers *csi.Drivers
	driver  *csitest.Driver
	woken   chan pod.UID
	held    map[string]bool // disks, by where they are shown
}

const driverName = "csi.example.com"

// newDriven returns a Manager whose driver stages; change may make it another one.
func newDriven(t *testing.T, change func(*csitest.Driver)) *driven {
	t.Helper()
	dir, err := os.MkdirTemp("", "csi") // short, for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	m, fake, s := newStorage(t)
	d := &driven{
		Manager: m, t: t, fake: fake, storage: s, woken: make(chan pod.UID, 100), held: map[string]bool{},
		objects: &storageObjects{
			drivers: map[string]*storagev1.CSIDriver{driverName: {Spec: storagev1.CSIDriverSpec{AttachRequired: ptr.To(false)}}},
			secrets: map[string]*v1.Secret{}, attachments: map[string]*storagev1.VolumeAttachment{},
		},
		driver: &csitest.Driver{Name: driverName, NodeID: "n", Dir: dir, Registry: dir + "/r", Stages: true, Mounter: fake},
	}
	if change != nil {
		change(d.driver)
	}
	stop, err := d.driver.Serve()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	d.restart()
	return d
}

// restart puts a new Manager in the place of the old one, as a new agent does.
func (d *driven) restart() {
	d.t.Helper()
	var err error
	if d.drivers, err = csi.New(csi.Config{Log: slog.New(slog.DiscardHandler)}); err != nil {
		d.t.Fatal(err)
	}
	d.register()
	next, err := New(Config{
		Root: d.host.root, Mounter: d.fake, Log: d.host.log, Journal: d.journal, Claims: d.storage, Node: d.claims.node, Recorder: d.host.recorder,
		CSI: CSIConfig{Drivers: d.drivers, Objects: d.objects, NodeName: "n", ControllerAttach: true, Wake: func(uid pod.UID) { d.woken <- uid }},
	})
	if err != nil {
		d.t.Fatal(err)
	}
	d.Manager = next
	d.disks().loops = &fakeLoops{}
	d.loops().holdDisk = func(disk *os.File) (bool, error) {
		fresh := !d.held[disk.Name()]
		d.held[disk.Name()] = true
		return fresh, nil
	}
	d.loops().freeDisk = func(path string) error { delete(d.held, path); return nil }
	d.CSI.Load()
}

func (d *driven) register() {
	d.t.Helper()
	if err := d.drivers.RegisterPlugin(d.t.Context(), driverName, filepath.Join(d.driver.Dir, "csi.sock"), []string{"1.0.0"}); err != nil {
		d.t.Fatal(err)
	}
}

// unstageAll lets the Manager unstage what nobody has.
func (d *driven) unstageAll() {
	d.t.Helper()
	ctx, cancel := context.WithCancel(d.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.CSI.Run(ctx) }()
	limited, done := context.WithTimeout(ctx, time.Minute)
	defer done()
	if err := d.CSI.Drain(limited); err != nil {
		d.t.Error(err)
	}
	cancel()
	<-ended
}

// calls are the names of the calls that the driver got.
func (d *driven) calls() []string {
	d.t.Helper()
	var out []string
	for _, c := range d.allCalls() {
		out = append(out, strings.TrimSuffix(strings.TrimPrefix(c.Method, "Node"), "Volume"))
	}
	return out
}

func (d *driven) allCalls() []csitest.Call {
	d.t.Helper()
	calls, err := csitest.Calls(d.driver.Dir)
	if err != nil {
		d.t.Fatal(err)
	}
	return calls
}

func (d *driven) expectCalls(want ...string) {
	d.t.Helper()
	if diff := cmp.Diff(want, d.calls()); diff != "" {
		d.t.Fatalf("calls of the driver (-want +got):\n%s", diff)
	}
}

// expectGone checks that nothing is mounted, and nothing left of what was.
func (d *driven) expectGone() {
	d.t.Helper()
	if points, err := d.fake.List(); err != nil || len(points) > 0 {
		d.t.Errorf("still mounted: %v, %v", points, err)
	}
	if len(d.held) > 0 {
		d.t.Errorf("still held: %v", d.held)
	}
	for _, pattern := range []string{"pods/*/volumes/*", "pods/*/volumeDevices/*/*", "plugins/kubernetes.io/csi/*/*", "plugins/kubernetes.io/csi/volumeDevices/*/*"} {
		left, err := filepath.Glob(filepath.Join(d.host.root, pattern))
		left = slices.DeleteFunc(left, func(path string) bool { // folders of the folders of disks
			return path == filepath.Join(d.csi().dirs.disksDir(), "staging") || path == filepath.Join(d.csi().dirs.disksDir(), "publish")
		})
		if err != nil || len(left) > 0 {
			d.t.Errorf("left: %v, %v", left, err)
		}
	}
}

// claim binds a claim to a volume of the driver.
func (d *driven) claim(name string) *v1.PersistentVolume {
	_, pv := d.storage.bind(name, v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{
		Driver: driverName, VolumeHandle: "handle-" + name, FSType: "ext4", VolumeAttributes: map[string]string{"size": "small"},
	}})
	pv.Spec.AccessModes, pv.Spec.MountOptions = []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, []string{"noatime"}
	return pv
}

// user returns a pod with the claim, whose folder is made.
func (d *driven) user(id, claim string) *v1.Pod {
	d.t.Helper()
	p := podWith(claimVolume("v", claim))
	p.UID = types.UID(id)
	if err := os.MkdirAll(filepath.Join(d.host.root, "pods", id, "volumes"), 0o750); err != nil {
		d.t.Fatal(err)
	}
	return p
}

func (d *driven) staging(name string) string {
	return filepath.Join(d.host.root, "plugins/kubernetes.io/csi", driverName, hash("handle-"+name))
}

func TestCSIVolumeOfTwoPods(t *testing.T) {
	d := newDriven(t, nil)
	pv := d.claim("c")
	pv.Spec.CSI.NodeStageSecretRef = &v1.SecretReference{Namespace: "keys", Name: "stage"}
	pv.Spec.CSI.NodePublishSecretRef = &v1.SecretReference{Namespace: "keys", Name: "publish"}
	for _, name := range []string{"stage", "publish"} {
		d.objects.secrets["keys/"+name] = &v1.Secret{Data: map[string][]byte{"key": []byte(name)}}
	}
	first, second := d.user("first", "c"), d.user("second", "c")
	second.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = true

	path := filepath.Join(d.host.root, "pods/first/volumes/kubernetes.io~csi/pv-c/mount")
	got, err := d.setup(t, first)
	if err != nil || got["v"].HostPath != path || got["v"].ReadOnly {
		t.Fatalf("got %+v, %v", got, err)
	}
	if _, err = d.setup(t, first); err != nil { // nothing is to be done again
		t.Fatal(err)
	}
	if got, err = d.setup(t, second); err != nil || !got["v"].ReadOnly {
		t.Fatalf("got %+v, %v", got, err)
	}
	how := csitest.Call{Volume: "handle-c", Staging: d.staging("c") + "/globalmount", FSType: "ext4", Flags: []string{"noatime"}, Mode: "SINGLE_NODE_WRITER", Context: map[string]string{"size": "small"}}
	stage, publish, shared := how, how, how
	stage.Method, stage.Secrets = "NodeStageVolume", map[string]string{"key": "stage"}
	publish.Method, publish.Target, publish.Secrets = "NodePublishVolume", path, map[string]string{"key": "publish"}
	shared = publish
	shared.Target, shared.ReadOnly = strings.Replace(path, "first", "second", 1), true
	if diff := cmp.Diff([]csitest.Call{stage, publish, shared}, d.allCalls()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	for file, want := range map[string]string{
		d.staging("c"):     `{"driverName":"csi.example.com","volumeHandle":"handle-c"}`,
		filepath.Dir(path): `{"driverName":"csi.example.com","volumeHandle":"handle-c","specVolID":"pv-c","nodeName":"n","attachmentID":"csi-` + hash("handle-c"+driverName+"n") + `","volumeLifecycleMode":"Persistent"}`,
	} {
		if b, err := os.ReadFile(filepath.Join(file, "vol_data.json")); err != nil || string(b) != want {
			t.Errorf("%s: %s, %v", file, b, err)
		}
	}

	if err := d.Teardown(t.Context(), "first"); err != nil {
		t.Fatal(err)
	}
	d.unstageAll() // the second pod has it still
	err = d.CSI.unstageAlone(t.Context(), csiID{driverName, "handle-c"})
	messagestest.SawError(err)
	if want := fmt.Sprintf("the device mount path %q is still mounted by other references [%s]", d.staging("c")+"/globalmount", shared.Target); err == nil || err.Error() != want {
		t.Errorf("got %v\nwant %s", err, want)
	}
	d.expectCalls("Stage", "Publish", "Publish", "Unpublish")
	if err := d.Teardown(t.Context(), "second"); err != nil {
		t.Fatal(err)
	}
	d.unstageAll()
	d.expectCalls("Stage", "Publish", "Publish", "Unpublish", "Unpublish", "Unstage")
	d.expectGone()
}

// Whatever step of a volume's life an agent is killed in, the next one either finishes it or takes
// it down.
func TestCSIVolumeOverARestartInEachStep(t *testing.T) {
	for _, method := range []string{"NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"} {
		for _, fault := range []string{csitest.Fail, csitest.FailAfter} {
			for _, code := range []codes.Code{codes.Unavailable, codes.Internal} {
				for _, wanted := range []bool{true, false} {
					t.Run(fmt.Sprintf("%s/%s/%s/%t", method, fault, code, wanted), func(t *testing.T) {
						testRestart(t, method, fault, code, wanted)
					})
				}
			}
		}
	}
}

// testRestart lets one call of a volume's life fail, and a new agent come. wanted: the pod is still
// to run then.
func testRestart(t *testing.T, method, fault string, code codes.Code, wanted bool) {
	d := newDriven(t, nil)
	d.claim("c")
	p := d.user("one", "c")
	if err := csitest.Break(d.driver.Dir, method, fault, code); err != nil {
		t.Fatal(err)
	}
	_, failed := d.setup(t, p)
	if failed == nil {
		failed = d.Teardown(t.Context(), "one")
	}
	if failed == nil {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		d.csi().state.locked(func() { d.csi().state.staged[csiID{driverName, "handle-c"}] = true })
		failed = d.CSI.unstage(ctx, csiID{driverName, "handle-c"})
	}
	if failed == nil || csitest.Broken(d.driver.Dir, method) {
		t.Fatalf("nothing failed: %v", d.calls())
	}
	d.restart()
	if wanted {
		if got, err := d.setup(t, p); err != nil || got["v"].HostPath == "" {
			t.Fatalf("after %v: %v, %v", failed, got, err)
		}
		if mounted, err := d.fake.IsMountPoint(publishPath(filepath.Join(d.host.root, "pods/one"), "pv-c")); err != nil || !mounted {
			t.Errorf("the volume is not mounted: %v", err)
		}
	}
	if err := d.Teardown(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	d.unstageAll()
	d.expectGone()
}

// An agent that is killed between the volumes of one pod: one is there, in the other one, which the
// pod brought with itself, a call has failed.
func TestCSIVolumesOverARestartBetweenThem(t *testing.T) {
	for _, method := range []string{"NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume"} {
		for _, fault := range []string{csitest.Fail, csitest.FailAfter} {
			for _, wanted := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s/%s/%t", method, fault, wanted), func(t *testing.T) {
					d := newDriven(t, nil)
					d.claim("c")
					d.claim("p-own")
					p := d.user("one", "c")
					p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: "own", VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}})
					p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts, v1.VolumeMount{Name: "own", MountPath: "/own"})
					d.storage.claims["p-own"].OwnerReferences = []metav1.OwnerReference{{UID: p.UID, Controller: ptr.To(true)}}
					if err := csitest.Break(d.driver.Dir, method, fault, codes.Unavailable); err != nil {
						t.Fatal(err)
					}
					_, failed := d.setup(t, p)
					if failed == nil {
						failed = d.Teardown(t.Context(), "one")
					}
					if failed == nil || csitest.Broken(d.driver.Dir, method) {
						t.Fatalf("nothing failed: %v", d.calls())
					}
					d.restart()
					if wanted {
						if got, err := d.setup(t, p); err != nil || len(got) != 2 {
							t.Fatalf("after %v: %v, %v", failed, got, err)
						}
					}
					if err := d.Teardown(t.Context(), "one"); err != nil {
						t.Fatal(err)
					}
					d.unstageAll()
					d.expectGone()
				})
			}
		}
	}
}

func TestCSIVolumeWithoutItsDriver(t *testing.T) {
	d := newDriven(t, nil)
	d.claim("c")
	p := d.user("one", "c")
	endpoint := filepath.Join(d.driver.Dir, "csi.sock")
	d.drivers.DeregisterPlugin(driverName, endpoint)
	const missing = "driver name csi.example.com not found in the list of registered CSI drivers"
	if _, err := d.setup(t, p); err == nil || !strings.Contains(err.Error(), missing) {
		t.Fatalf("got %v", err)
	}
	d.register()
	d.CSI.DriversChanged()
	if uid := <-d.woken; uid != "one" {
		t.Errorf("woken: %s", uid)
	}
	if _, err := d.setup(t, p); err != nil {
		t.Fatal(err)
	}
	d.drivers.DeregisterPlugin(driverName, endpoint)
	if err := d.Teardown(t.Context(), "one"); err == nil || !strings.Contains(err.Error(), missing) {
		t.Fatalf("got %v", err)
	}
	d.register()
	d.CSI.DriversChanged()
	<-d.woken
	if err := d.Teardown(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	d.unstageAll()
	d.expectGone()
}

func TestCSIVolumeWithoutStaging(t *testing.T) {
	d := newDriven(t, func(c *csitest.Driver) { c.Stages, c.Groups = false, true })
	d.claim("c")
	p := d.user("one", "c")
	p.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr.To(int64(4242))}
	if _, err := d.setup(t, p); err != nil {
		t.Fatal(err)
	}
	if c := d.allCalls()[0]; c.Method != "NodePublishVolume" || c.Staging != "" || c.Group != "4242" {
		t.Errorf("got %+v", c)
	}
	if err := d.Teardown(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	d.unstageAll()
	d.expectCalls("Publish", "Unpublish")
	d.expectGone()
}

func TestCSIVolumeOfAPodItself(t *testing.T) {
	d := newDriven(t, nil)
	p := d.user("one", "")
	p.Spec.ServiceAccountName = "account"
	p.Spec.Volumes[0].VolumeSource = v1.VolumeSource{CSI: &v1.CSIVolumeSource{
		Driver: driverName, ReadOnly: ptr.To(true), VolumeAttributes: map[string]string{"a": "b"}, NodePublishSecretRef: &v1.LocalObjectReference{Name: "s"},
	}}
	d.objects.secrets["default/s"] = &v1.Secret{Data: map[string][]byte{"key": []byte("value")}}
	known := d.objects.drivers[driverName]
	persistent := known.DeepCopy()
	persistent.Spec.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent}
	for driver, why := range map[*storagev1.CSIDriver]string{
		nil: "no CSIDriver object", known: "only supports []", persistent: `only supports ["Persistent"]`,
	} {
		d.objects.drivers[driverName] = driver
		if _, err := d.setup(t, p); err == nil || !strings.Contains(err.Error(), `volume mode "Ephemeral" not supported by driver csi.example.com (`+why+`)`) {
			t.Fatalf("got %v", err)
		}
	}
	d.objects.drivers[driverName] = known
	spec := &d.objects.drivers[driverName].Spec
	spec.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecycleEphemeral}
	spec.PodInfoOnMount, spec.TokenRequests, spec.RequiresRepublish = ptr.To(true), []storagev1.TokenRequest{{Audience: "a"}}, ptr.To(true)
	in, err := d.Prepare(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Setup(t.Context(), p, in); err != nil {
		t.Fatal(err)
	}
	want := csitest.Call{
		Method: "NodePublishVolume", Volume: "csi-" + hash("onev"), Target: publishPath(filepath.Join(d.host.root, "pods/one"), "v"), ReadOnly: true, Mode: "SINGLE_NODE_WRITER",
		Context: map[string]string{
			"a": "b", "csi.storage.k8s.io/pod.name": "p", "csi.storage.k8s.io/pod.namespace": "default", "csi.storage.k8s.io/pod.uid": "one",
			"csi.storage.k8s.io/serviceAccount.name": "account", "csi.storage.k8s.io/ephemeral": "true",
			"csi.storage.k8s.io/serviceAccount.tokens": `{"a":{"token":"token of p for a","expirationTimestamp":"2023-11-14T22:13:20Z"}}`,
		},
		Secrets: map[string]string{"key": "value"},
	}
	if diff := cmp.Diff([]csitest.Call{want}, d.allCalls()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}

	// It is published again in each pass, and a failure of that leaves what is there.
	if in, err = d.Prepare(t.Context(), p); err != nil || !in.Live() {
		t.Fatalf("the volume is not to be published again: %v", err)
	}
	if err := csitest.Break(d.driver.Dir, "NodePublishVolume", csitest.Fail, codes.Internal); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Setup(t.Context(), p, in); err == nil {
		t.Error("a failure of the driver is not told")
	}
	if mounted, err := d.fake.IsMountPoint(want.Target); err != nil || !mounted {
		t.Errorf("the volume went: %v", err)
	}
	if err := d.Teardown(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	d.expectGone()
}

func TestCSIVolumeThatIsAttached(t *testing.T) {
	d := newDriven(t, nil)
	d.claim("c")
	d.objects.drivers[driverName] = nil // attach is the default
	p := d.user("one", "c")
	node := &v1.Node{}
	d.claims.node = func() (*v1.Node, bool) { return node, true }
	d.csi().state.locked(func() { d.csi().state.known = true })
	const unique = v1.UniqueVolumeName("kubernetes.io/csi/csi.example.com^handle-c")

	prepared := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { _, err := d.Prepare(ctx, p); prepared <- err.Err() }()
	cancel()
	if err := <-prepared; !errors.Is(err, context.Canceled) {
		t.Fatalf("it did not wait: %v", err)
	}
	if got := d.CSI.VolumesInUse(); len(got) != 1 || got[0] != unique {
		t.Fatalf("in use: %v", got)
	}
	if err := d.csi().attacher.missingToAttach(csiID{driverName, "handle-c"}); err == nil || err.Error() != "Volume has not been added to the list of VolumesInUse in the node's volume status" {
		t.Errorf("got %v", err)
	}
	node.Status.VolumesInUse = []v1.UniqueVolumeName{unique}
	err := d.csi().attacher.missingToAttach(csiID{driverName, "handle-c"})
	messagestest.SawError(err)
	if err == nil || err.Error() != "Volume not attached according to node status" {
		t.Errorf("got %v", err)
	}
	node.Status.VolumesAttached = []v1.AttachedVolume{{Name: unique}}
	d.CSI.NodeChanged()
	name := "csi-" + hash("handle-c"+driverName+"n")
	for _, tt := range []struct {
		a    *storagev1.VolumeAttachment
		want string
	}{
		{nil, "volume handle-c has GET error for volume attachment " + name},
		{&storagev1.VolumeAttachment{}, "volume handle-c is not attached for volume attachment " + name},
		{&storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{}}}, "volume attachment is being deleted"},
		{&storagev1.VolumeAttachment{Status: storagev1.VolumeAttachmentStatus{AttachError: &storagev1.VolumeError{Message: "no room"}}}, "no room"},
	} {
		d.objects.attachments[name] = tt.a
		if _, err := d.setup(t, p); err == nil || !strings.Contains(err.Error(), "MountVolume.WaitForAttach failed for volume \"pv-c\" : "+tt.want) {
			t.Errorf("got %v, want %s", err, tt.want)
		}
	}
	d.objects.attachments[name] = &storagev1.VolumeAttachment{Status: storagev1.VolumeAttachmentStatus{Attached: true, AttachmentMetadata: map[string]string{"device": "1"}}}
	if _, err := d.setup(t, p); err != nil {
		t.Fatal(err)
	}
	for _, c := range d.allCalls() {
		if diff := cmp.Diff(map[string]string{"device": "1"}, c.PublishContext); diff != "" {
			t.Errorf("%s: publish context (-want +got):\n%s", c.Method, diff)
		}
	}
	if err := d.Teardown(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	if got := d.CSI.VolumesInUse(); len(got) != 1 {
		t.Errorf("in use while it is staged: %v", got)
	}
	d.unstageAll()
	if got := d.CSI.VolumesInUse(); got == nil || len(got) != 0 {
		t.Errorf("in use at the end: %v", got)
	}
	d.expectGone()
}

// What an earlier agent has in use stays so, until it is known not to be.
func TestCSIVolumesInUseOverARestart(t *testing.T) {
	d := newDriven(t, nil)
	d.claim("c")
	p := d.user("one", "c")
	if _, err := d.setup(t, p); err != nil {
		t.Fatal(err)
	}
	d.restart()
	d.objects.drivers[driverName] = nil
	if got := d.CSI.VolumesInUse(); got != nil {
		t.Errorf("before anything is known: %v", got)
	}
	if !d.csi().attacher.learnAttachable(t.Context()) {
		t.Fatal("not learned")
	}
	if got := d.CSI.VolumesInUse(); len(got) != 1 {
		t.Errorf("got %v", got)
	}
}

func TestCSIVolumeWithoutItsData(t *testing.T) {
	d := newDriven(t, nil)
	d.claim("c")
	p := d.user("one", "c")
	if _, err := d.setup(t, p); err != nil {
		t.Fatal(err)
	}
	dir := publishDir(filepath.Join(d.host.root, "pods/one"), "pv-c")
	if err := os.WriteFile(filepath.Join(dir, "vol_data.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := d.Teardown(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	d.unstageAll()
	d.expectGone()
}

func TestCSIAccessModes(t *testing.T) {
	for mode, want := range map[v1.PersistentVolumeAccessMode][2]string{
		v1.ReadWriteOnce:    {"SINGLE_NODE_WRITER", "SINGLE_NODE_MULTI_WRITER"},
		v1.ReadWriteOncePod: {"SINGLE_NODE_WRITER", "SINGLE_NODE_SINGLE_WRITER"},
		v1.ReadOnlyMany:     {"MULTI_NODE_READER_ONLY", "MULTI_NODE_READER_ONLY"},
		v1.ReadWriteMany:    {"MULTI_NODE_MULTI_WRITER", "MULTI_NODE_MULTI_WRITER"},
	} {
		modes := []v1.PersistentVolumeAccessMode{mode, v1.ReadWriteMany}
		if got := [2]string{accessMode(modes, nil).String(), accessMode(modes, csi.Capabilities{csiapi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER: true}).String()}; got != want {
			t.Errorf("%s: %v, want %v", mode, got, want)
		}
	}
}
