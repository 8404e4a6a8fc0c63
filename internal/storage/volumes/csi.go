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

// Drivers are the CSI drivers that are registered on this machine.
type Drivers interface {
	// Driver returns one. That it is not there is an error that names it.
	Driver(name string) (*csi.Driver, error)
}

// StorageObjects are what volumes of CSI drivers need of the API server, besides claims. What does
// not exist is a NotFound error of the API.
type StorageObjects interface {
	// CSIDriver returns what is said of a driver, nil if nothing is.
	CSIDriver(ctx context.Context, name string) (*storagev1.CSIDriver, error)
	GetVolumeAttachment(ctx context.Context, name string) (*storagev1.VolumeAttachment, error)
	// GetSecret reads the Secret as it is now.
	GetSecret(ctx context.Context, namespace, name string) (*v1.Secret, error)
	// DriverToken returns a token of the pod's service account, and until when it is valid. An
	// empty audience is the API server's own; nil seconds leave the life to it.
	DriverToken(ctx context.Context, p *v1.Pod, audience string, seconds *int64) (token string, expires time.Time, err error)
}

// CSIConfig is what volumes of CSI drivers need. The zero value is for a Manager without such
// volumes.
type CSIConfig struct {
	Drivers Drivers
	Objects StorageObjects
	// NodeName is the name by which a cluster's controllers know this machine.
	NodeName string
	// ControllerAttach: a controller attaches volumes to this machine and says so in the Node; else
	// only the VolumeAttachment is looked at.
	ControllerAttach bool
	// Wake asks for a pass over a pod; nil: nobody is asked.
	Wake func(pod.UID)
	// Exhausted says that this node takes fewer volumes of a driver than it was thought to; nil:
	// nobody wants to know.
	Exhausted func(driver string)
	// InUseChanged says that VolumesInUse has changed; nil: nobody wants to know.
	InUseChanged func()
	// RepublishPeriod is how often volumes are published again whose driver wants that; 0 is a
	// minute.
	RepublishPeriod time.Duration
	// ClaimsPeriod is how often claims of pods are read again, whose volumes may have grown; 0:
	// whoever keeps the claims asks for a pass over their pods.
	ClaimsPeriod time.Duration
	// FileLabel returns the label that SELinux gives to files of containers, "" where it is off;
	// nil: it is.
	FileLabel func() string
	// LabelledModes are the access modes of volumes that are mounted with a label, rather than
	// relabelled.
	LabelledModes LabelledModes
	// Health: drivers are listened to when they tell in what state volumes are (feature gate
	// CSIVolumeHealth).
	Health bool
	// ClaimEvent records an event about a claim; nil records none.
	ClaimEvent func(c *v1.PersistentVolumeClaim, eventtype, reason, message string)
}

// csiID is which volume of which driver.
type csiID struct{ driver, handle string }

// unique is the volume's name in the status of the Node.
func (id csiID) unique() v1.UniqueVolumeName {
	return v1.UniqueVolumeName("kubernetes.io/csi/" + id.driver + "^" + id.handle)
}

// attachment is the name of the volume's VolumeAttachment.
func (id csiID) attachment(node string) string { return "csi-" + hash(id.handle+id.driver+node) }

func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// csiVolume is a volume of a CSI driver as a pod has it.
type csiVolume struct {
	csiID
	pod                        *v1.Pod
	podDir                     string
	can                        csi.Capabilities          // of the driver, once it was asked
	object                     *storagev1.CSIDriver      // what the cluster says of the driver; nil: nothing, or it was not asked
	specName                   string                    // of its directory: the persistent volume's name, or that of the pod's volume
	pv                         *v1.PersistentVolume      // nil for one that is written in the pod
	claim                      *v1.PersistentVolumeClaim // nil without pv
	readOnly                   bool
	block                      bool // pods are given the disk, rather than the files on it
	fsType                     string
	attributes                 map[string]string
	accessModes                []v1.PersistentVolumeAccessMode
	mountOptions               []string
	label                      string // of SELinux, with which it is mounted; "" for none
	stageSecret, publishSecret *v1.SecretReference
	expandSecret               *v1.SecretReference
}

// csiOf returns what a volume of the pod is to its driver: one that a claim is bound to, or one
// that is written in the pod, and lives as long as it.
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

// csiCounted returns the name under which operations on the volume are counted: that of its
// driver's volumes.
func csiCounted(v *volume) string { return csiPluginName(csiOf(v).driver) }

// failed returns the failure of a step of setting up the volume.
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

// publication is a volume of a pod.
type publication struct {
	uid      pod.UID
	specName string
}

// csiState is what is known of the volumes of CSI drivers. What must outlive the agent is on disk.
type csiState struct {
	CSIConfig
	*volumeLocks
	wake chan struct{} // capacity 1: Run has something to look at

	mu             sync.Mutex
	users          map[csiID]map[pod.UID]bool // guarded by mu; pods that have the volume, or are about to
	staged         map[csiID]bool             // guarded by mu; those that may be staged, with whether they are: this agent saw it
	published      map[publication]bool       // guarded by mu; this agent saw it
	disks          map[csiID]string           // guarded by mu; the names of volumes that are disks
	labels         map[csiID]*mountLabel      // guarded by mu; of SELinux, with which volumes are mounted
	attach         map[csiID]bool             // guarded by mu; whether a volume needs to be attached, as far as it is known
	unstaging      map[csiID]*unstaging       // guarded by mu
	republish      map[pod.UID]bool           // guarded by mu; pods some of whose volumes are to be published again and again
	waiting        map[pod.UID]bool           // guarded by mu; pods for which a driver is missing, or failed
	growing        map[csiID]*growing         // guarded by mu; volumes of claims
	expands        map[string]bool            // guarded by mu; whether drivers make volumes larger, as far as they were asked
	rereadAt       time.Time                  // guarded by mu; when claims are to be read again
	freed          chan struct{}              // guarded by mu; closed and replaced when a volume was unstaged
	changed        chan struct{}              // guarded by mu; closed and replaced when the Node has changed
	publishedInUse []v1.UniqueVolumeName      // guarded by mu; what VolumesInUse was when InUseChanged was called last
	known          bool                       // guarded by mu; it is known what an earlier agent left
	settled        bool                       // guarded by mu; all wanted pods are known
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

// use notes that the pod has the volume, or is about to.
func (s *csiState) use(uid pod.UID, id csiID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users[id] == nil {
		s.users[id] = map[pod.UID]bool{}
	}
	s.users[id][uid] = true
}

// release forgets what the pod had: its volumes are gone from its folder.
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

// note changes the state.
func (s *csiState) note(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// publishInUse says that VolumesInUse has changed, if it has.
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

// inUse is VolumesInUse. The caller holds s.mu.
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

// volumeLocks lets one at a time do something with a volume.
type volumeLocks struct {
	mu sync.Mutex
	of map[csiID]*volumeLock // guarded by mu
}

// volumeLock is whose turn it is to do something with a volume.
type volumeLock struct {
	taken   chan struct{} // capacity 1
	waiting int           // who has it included; guarded by turns.mu
}

func newVolumeLocks() *volumeLocks { return &volumeLocks{of: map[csiID]*volumeLock{}} }

// take waits for the turn with the volume.
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
