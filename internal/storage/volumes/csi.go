package volumes

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"

	"berth/internal/pod"
	"berth/internal/storage/csi"
)

// csiPlugin is the directory name of volumes of CSI drivers.
const csiPlugin = "kubernetes.io~csi"

// Drivers returns the CSI drivers that are registered on this machine.
type Drivers interface {
	// Driver returns a driver. If it is not registered, the error names it.
	Driver(name string) (*csi.Driver, error)
}

// StorageObjects is the part of the API server that CSI volumes need besides claims. Objects that
// do not exist return a NotFound API error.
type StorageObjects interface {
	// CSIDriver returns the CSIDriver object, nil if there is none.
	CSIDriver(ctx context.Context, name string) (*storagev1.CSIDriver, error)
	GetVolumeAttachment(ctx context.Context, name string) (*storagev1.VolumeAttachment, error)
	// GetSecret returns the current Secret.
	GetSecret(ctx context.Context, namespace, name string) (*v1.Secret, error)
	// DriverToken returns a token of the pod's service account and its expiry. An empty audience
	// means the API server's; nil seconds mean an hour.
	DriverToken(ctx context.Context, p *v1.Pod, audience string, seconds *int64) (token string, expires time.Time, err error)
}

// CSIConfig configures CSI volumes. The zero value is for a Manager without them.
type CSIConfig struct {
	Drivers Drivers
	Objects StorageObjects
	// NodeName is the name of this machine's Node.
	NodeName string
	// ControllerAttach: a controller attaches volumes to this machine and reports it in the Node;
	// otherwise only the VolumeAttachment is checked.
	ControllerAttach bool
	// Wake wakes the worker of a pod; nil: no worker is woken.
	Wake func(pod.UID)
	// Exhausted is called when this node accepts fewer volumes of a driver than reported; it may be
	// nil.
	Exhausted func(driver string)
	// InUseChanged is called when VolumesInUse has changed; it may be nil.
	InUseChanged func()
	// RepublishPeriod is the interval of NodePublishVolume calls for drivers with
	// requiresRepublish; 0 means a minute.
	RepublishPeriod time.Duration
	// ClaimsPeriod is the interval of reading claims again, whose volumes may have grown; 0: the
	// caller wakes the pods of claims that change.
	ClaimsPeriod time.Duration
	// FileLabel returns the SELinux label of container files, "" if SELinux is disabled; nil: it
	// is.
	FileLabel func() string
	// LabelledModes are the access modes of volumes that are mounted with an SELinux label, rather
	// than relabelled.
	LabelledModes LabelledModes
	// Health enables volume health reports of drivers (feature gate CSIVolumeHealth).
	Health bool
	// ClaimEvent records an event about a claim; nil records none.
	ClaimEvent func(c *v1.PersistentVolumeClaim, eventtype, reason, message string)
}

// csiID identifies a volume by driver and handle.
type csiID struct{ driver, handle string }

// unique returns the volume's name in the Node status.
func (id csiID) unique() v1.UniqueVolumeName {
	return v1.UniqueVolumeName("kubernetes.io/csi/" + id.driver + "^" + id.handle)
}

// attachment returns the name of the volume's VolumeAttachment.
func (id csiID) attachment(node string) string { return "csi-" + hash(id.handle+id.driver+node) }

func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// csiVolume is a CSI volume of a pod.
type csiVolume struct {
	csiID
	pod                        *v1.Pod
	podDir                     string
	can                        csi.Capabilities          // of the driver, once they have been read
	object                     *storagev1.CSIDriver      // nil: there is none, or it was not read
	specName                   string                    // name of its directory: that of the persistent or the pod's volume
	pv                         *v1.PersistentVolume      // nil for an inline volume
	claim                      *v1.PersistentVolumeClaim // nil without pv
	readOnly                   bool
	block                      bool // the pod gets the block device, not a filesystem
	fsType                     string
	attributes                 map[string]string
	accessModes                []v1.PersistentVolumeAccessMode
	mountOptions               []string
	label                      string // SELinux label with which it is mounted; "" for none
	stageSecret, publishSecret *v1.SecretReference
	expandSecret               *v1.SecretReference
}

// csiOf returns the CSI volume of a pod's volume: that of its claim, or an inline volume, which
// lives as long as the pod.
func csiOf(v *volume) csiVolume {
	out := csiVolume{pod: v.pod, podDir: v.podDir, specName: v.name(), block: v.isBlock()}
	if b := v.bound; b != nil {
		src := b.Spec.CSI
		out.csiID, out.pv, out.claim, out.readOnly, out.fsType = csiID{src.Driver, src.VolumeHandle}, b.PersistentVolume, b.claim, b.readOnly, src.FSType
		out.attributes, out.accessModes, out.mountOptions = src.VolumeAttributes, b.Spec.AccessModes, b.Spec.MountOptions
		out.stageSecret, out.publishSecret, out.expandSecret = src.NodeStageSecretRef, src.NodePublishSecretRef, src.NodeExpandSecretRef
		return out
	}
	src := v.spec.CSI
	out.csiID, out.readOnly = csiID{src.Driver, "csi-" + hash(string(v.pod.UID)+v.spec.Name)}, ptr.Deref(src.ReadOnly, false)
	out.fsType, out.attributes, out.accessModes = ptr.Deref(src.FSType, ""), src.VolumeAttributes, []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	if ref := src.NodePublishSecretRef; ref != nil {
		out.publishSecret = &v1.SecretReference{Namespace: v.pod.Namespace, Name: ref.Name}
	}
	return out
}

// csiCounted returns the volume_plugin label of the volume's operation metrics, which contains the
// driver.
func csiCounted(v *volume) string { return csiPluginName(csiOf(v).driver) }

// failed returns the error of a step of the volume's setup.
func (v *csiVolume) failed(step string, err error) *Error {
	if v.block {
		return &Error{Class: MapFailed, Step: step, Err: err}
	}
	return &Error{Step: step, Err: err}
}

func (v *csiVolume) lifecycle() storagev1.VolumeLifecycleMode {
	if v.pv == nil {
		return storagev1.VolumeLifecycleEphemeral
	}
	return storagev1.VolumeLifecyclePersistent
}

// publication identifies a published volume of a pod.
type publication struct {
	uid      pod.UID
	specName string
}

// csiState is the state of CSI volumes. State that must survive a restart is on disk.
type csiState struct {
	CSIConfig
	*volumeLocks
	wake chan struct{} // capacity 1: Run has work

	mu             sync.Mutex
	users          map[csiID]map[pod.UID]bool // guarded by mu; pods that use the volume, or are about to
	staged         map[csiID]bool             // guarded by mu; volumes that may be staged; true: this agent staged it
	published      map[publication]bool       // guarded by mu; published by this agent
	disks          map[csiID]string           // guarded by mu; names of block volumes
	labels         map[csiID]*mountLabel      // guarded by mu; SELinux labels of mounted volumes
	attach         map[csiID]bool             // guarded by mu; whether a volume needs to be attached, if known
	unstaging      map[csiID]*unstaging       // guarded by mu
	republish      map[pod.UID]bool           // guarded by mu; pods with volumes that are republished periodically
	waiting        map[pod.UID]bool           // guarded by mu; pods that wait for a missing or failed driver
	growing        map[csiID]*growing         // guarded by mu; volumes of claims
	expands        map[string]bool            // guarded by mu; whether drivers support expansion, if known
	rereadAt       time.Time                  // guarded by mu; when claims are to be read again
	freed          chan struct{}              // guarded by mu; closed and replaced after each unstaging
	changed        chan struct{}              // guarded by mu; closed and replaced when the Node has changed
	publishedInUse []v1.UniqueVolumeName      // guarded by mu; VolumesInUse at the last call of InUseChanged
	known          bool                       // guarded by mu; earlier state is loaded
	settled        bool                       // guarded by mu; all desired pods are known
}

func newCSIState(c CSIConfig) *csiState {
	if c.Wake == nil {
		c.Wake = func(pod.UID) {}
	}
	if c.InUseChanged == nil {
		c.InUseChanged = func() {}
	}
	if c.FileLabel == nil {
		c.FileLabel = func() string { return "" }
	}
	if c.Exhausted == nil {
		c.Exhausted = func(string) {}
	}
	if c.ClaimEvent == nil {
		c.ClaimEvent = func(*v1.PersistentVolumeClaim, string, string, string) {}
	}
	if c.RepublishPeriod == 0 {
		c.RepublishPeriod = time.Minute
	}
	return &csiState{
		CSIConfig: c, wake: make(chan struct{}, 1), users: map[csiID]map[pod.UID]bool{}, staged: map[csiID]bool{}, published: map[publication]bool{},
		attach: map[csiID]bool{}, volumeLocks: newVolumeLocks(), unstaging: map[csiID]*unstaging{}, republish: map[pod.UID]bool{},
		waiting: map[pod.UID]bool{}, changed: make(chan struct{}), freed: make(chan struct{}),
		disks: map[csiID]string{}, labels: map[csiID]*mountLabel{}, growing: map[csiID]*growing{}, expands: map[string]bool{},
	}
}

// use records that the pod uses the volume, or is about to.
func (s *csiState) use(uid pod.UID, id csiID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users[id] == nil {
		s.users[id] = map[pod.UID]bool{}
	}
	s.users[id][uid] = true
}

// release deletes the pod's entries: its volumes have been removed from its directory.
func (s *csiState) release(uid pod.UID) {
	s.mu.Lock()
	had := false
	for id, pods := range s.users {
		had = had || pods[uid]
		delete(pods, uid)
		if len(pods) == 0 {
			delete(s.users, id)
		}
	}
	for id, l := range s.labels {
		delete(l.pods, uid)
		if _, staged := s.staged[id]; !staged && len(l.pods) == 0 {
			delete(s.labels, id)
		}
	}
	for p := range s.published {
		if p.uid == uid {
			delete(s.published, p)
		}
	}
	s.releaseGrowing(uid)
	delete(s.republish, uid)
	delete(s.waiting, uid)
	s.mu.Unlock()
	if had {
		s.wakeUp()
		s.publishInUse()
	}
}

func (s *csiState) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// note runs change with mu held.
func (s *csiState) note(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// publishInUse calls InUseChanged if VolumesInUse has changed.
func (s *csiState) publishInUse() {
	s.mu.Lock()
	now := s.inUse()
	changed := !slices.Equal(now, s.publishedInUse)
	s.publishedInUse = now
	s.mu.Unlock()
	if changed {
		s.InUseChanged()
	}
}

// inUse returns VolumesInUse. The caller holds s.mu.
func (s *csiState) inUse() []v1.UniqueVolumeName {
	if !s.known {
		return nil
	}
	out := []v1.UniqueVolumeName{}
	for id, needs := range s.attach {
		_, staged := s.staged[id]
		switch {
		case !staged && len(s.users[id]) == 0:
			delete(s.attach, id)
		case needs:
			out = append(out, id.unique())
		}
	}
	slices.SortFunc(out, func(a, b v1.UniqueVolumeName) int { return strings.Compare(string(a), string(b)) })
	return out
}

// volumeLocks serializes operations on each volume.
type volumeLocks struct {
	mu sync.Mutex
	of map[csiID]*volumeLock // guarded by mu
}

// volumeLock is the lock of one volume.
type volumeLock struct {
	taken   chan struct{} // capacity 1
	waiting int           // including the holder; guarded by volumeLocks.mu
}

func newVolumeLocks() *volumeLocks { return &volumeLocks{of: map[csiID]*volumeLock{}} }

// take waits for the lock of the volume. give releases it.
func (t *volumeLocks) take(ctx context.Context, id csiID) (give func(), err error) {
	t.mu.Lock()
	mine := t.of[id]
	if mine == nil {
		mine = &volumeLock{taken: make(chan struct{}, 1)}
		t.of[id] = mine
	}
	mine.waiting++
	t.mu.Unlock()
	leave := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if mine.waiting--; mine.waiting == 0 {
			delete(t.of, id)
		}
	}
	select {
	case mine.taken <- struct{}{}:
		return func() { <-mine.taken; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, context.Cause(ctx)
	}
}
