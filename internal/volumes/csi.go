package volumes

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"

	"berth/internal/csi"
	"berth/internal/pod"
)

// csiPlugin is the directory name of volumes of CSI drivers.
const csiPlugin = "kubernetes.io~csi"

// Drivers are the CSI drivers that are registered on this machine.
type Drivers interface {
	// Driver returns one. That it is not there is an error that names it.
	Driver(name string) (*csi.Driver, error)
}

// StorageObjects are what volumes of CSI drivers need of the API server, besides claims. What does not exist is a NotFound error of the API.
type StorageObjects interface {
	// CSIDriver returns what is said of a driver, nil if nothing is.
	CSIDriver(ctx context.Context, name string) (*storagev1.CSIDriver, error)
	GetVolumeAttachment(ctx context.Context, name string) (*storagev1.VolumeAttachment, error)
	// GetSecret reads the Secret as it is now.
	GetSecret(ctx context.Context, namespace, name string) (*v1.Secret, error)
	// DriverToken returns a token of the pod's service account, and until when it is valid. An empty audience is the API server's own; nil
	// seconds leave the life to it.
	DriverToken(ctx context.Context, p *v1.Pod, audience string, seconds *int64) (token string, expires time.Time, err error)
}

// CSIConfig is what volumes of CSI drivers need. The zero value is for a Manager without such volumes.
type CSIConfig struct {
	Drivers Drivers
	Objects StorageObjects
	// NodeName is the name by which a cluster's controllers know this machine.
	NodeName string
	// ControllerAttach: a controller attaches volumes to this machine and says so in the Node; else only the VolumeAttachment is looked at.
	ControllerAttach bool
	// Wake asks for a pass over a pod; nil: nobody is asked.
	Wake func(pod.UID)
	// Exhausted says that this node takes fewer volumes of a driver than it was thought to; nil: nobody wants to know.
	Exhausted func(driver string)
	// InUseChanged says that VolumesInUse has changed; nil: nobody wants to know.
	InUseChanged func()
	// RepublishPeriod is how often volumes are published again whose driver wants that; 0 is a minute.
	RepublishPeriod time.Duration
	// ClaimsPeriod is how often claims of pods are read again, whose volumes may have grown; 0: whoever keeps the claims asks for a pass over their pods.
	ClaimsPeriod time.Duration
	// FileLabel returns the label that SELinux gives to files of containers, "" where it is off; nil: it is.
	FileLabel func() string
	// LabelledModes are the access modes of volumes that are mounted with a label, rather than relabelled.
	LabelledModes LabelledModes
	// Health: drivers are listened to when they tell in what state volumes are (feature gate CSIVolumeHealth).
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

// persistentCSI returns the volume that a claim is bound to.
func persistentCSI(b bound) csiVolume {
	src := b.Spec.CSI
	return csiVolume{
		csiID: csiID{src.Driver, src.VolumeHandle}, specName: b.Name, pv: b.PersistentVolume, claim: b.claim, readOnly: b.readOnly, block: isBlock(b), fsType: src.FSType,
		attributes: src.VolumeAttributes, accessModes: b.Spec.AccessModes, mountOptions: b.Spec.MountOptions,
		stageSecret: src.NodeStageSecretRef, publishSecret: src.NodePublishSecretRef, expandSecret: src.NodeExpandSecretRef,
	}
}

// inlineCSI returns the volume that is written in the pod, and lives as long as it.
func inlineCSI(p *v1.Pod, v *v1.Volume) csiVolume {
	out := csiVolume{
		csiID: csiID{v.CSI.Driver, "csi-" + hash(string(p.UID)+v.Name)}, specName: v.Name, readOnly: ptr.Deref(v.CSI.ReadOnly, false),
		fsType: ptr.Deref(v.CSI.FSType, ""), attributes: v.CSI.VolumeAttributes, accessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
	}
	if ref := v.CSI.NodePublishSecretRef; ref != nil {
		out.publishSecret = &v1.SecretReference{Namespace: p.Namespace, Name: ref.Name}
	}
	return out
}

func (v *csiVolume) lifecycle() storagev1.VolumeLifecycleMode {
	if v.pv == nil {
		return storagev1.VolumeLifecycleEphemeral
	}
	return storagev1.VolumeLifecyclePersistent
}

// Paths of a volume; those of the kubelet, so that a machine can change between the two.

// stageDir is the directory of what all pods share of the volume; it is mounted at globalmount below it.
func (m *Manager) stageDir(id csiID) string {
	return filepath.Join(m.root, "plugins/kubernetes.io/csi", id.driver, hash(id.handle))
}

func (m *Manager) stagePath(id csiID) string { return filepath.Join(m.stageDir(id), "globalmount") }

// publishDir is the directory of the volume in the pod's folder; it is mounted at mount below it.
func publishDir(podDir, specName string) string {
	return filepath.Join(podDir, "volumes", csiPlugin, specName)
}

func publishPath(podDir, specName string) string {
	return filepath.Join(publishDir(podDir, specName), "mount")
}

// target is where the driver shows the volume to the pod.
func (m *Manager) target(uid pod.UID, podDir string, v csiVolume) string {
	if v.block {
		return m.diskOf(v.specName).target(uid)
	}
	return publishPath(podDir, v.specName)
}

// staging is where the driver keeps what all pods share of the volume.
func (m *Manager) staging(v csiVolume) string {
	if v.block {
		return m.diskOf(v.specName).staging
	}
	return m.stagePath(v.csiID)
}

// publication is a volume of a pod.
type publication struct {
	uid      pod.UID
	specName string
}

// csiState is what is known of the volumes of CSI drivers. What must outlive the agent is on disk.
type csiState struct {
	CSIConfig
	wake chan struct{} // capacity 1: Run has something to look at

	mu        sync.Mutex
	users     map[csiID]map[pod.UID]bool // guarded by mu; pods that have the volume, or are about to
	staged    map[csiID]bool             // guarded by mu; those that may be staged, with whether they are: this agent saw it
	published map[publication]bool       // guarded by mu; this agent saw it
	disks     map[csiID]string           // guarded by mu; the names of volumes that are disks
	labels    map[csiID]*mountLabel      // guarded by mu; of SELinux, with which volumes are mounted
	attach    map[csiID]bool             // guarded by mu; whether a volume needs to be attached, as far as it is known
	turns     map[csiID]*turn            // guarded by mu
	unstaging map[csiID]*unstaging       // guarded by mu
	republish map[pod.UID]bool           // guarded by mu; pods some of whose volumes are to be published again and again
	waiting   map[pod.UID]bool           // guarded by mu; pods for which a driver is missing, or failed
	growing   map[csiID]*growing         // guarded by mu; volumes of claims
	expands   map[string]bool            // guarded by mu; whether drivers make volumes larger, as far as they were asked
	looks     time.Time                  // guarded by mu; when claims are to be read again
	freed     chan struct{}              // guarded by mu; closed and replaced when a volume was unstaged
	changed   chan struct{}              // guarded by mu; closed and replaced when the Node has changed
	told      []v1.UniqueVolumeName      // guarded by mu; what VolumesInUse was when InUseChanged was called last
	known     bool                       // guarded by mu; it is known what an earlier agent left
	settled   bool                       // guarded by mu; all wanted pods are known
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
		attach: map[csiID]bool{}, turns: map[csiID]*turn{}, unstaging: map[csiID]*unstaging{}, republish: map[pod.UID]bool{},
		waiting: map[pod.UID]bool{}, changed: make(chan struct{}), freed: make(chan struct{}),
		disks: map[csiID]string{}, labels: map[csiID]*mountLabel{}, growing: map[csiID]*growing{}, expands: map[string]bool{},
	}
}

// turn is whose turn it is to do something with a volume.
type turn struct {
	taken   chan struct{} // capacity 1
	waiting int           // who has it included; guarded by csiState.mu
}

// take waits for the turn with the volume.
func (s *csiState) take(ctx context.Context, id csiID) (give func(), err error) {
	s.mu.Lock()
	t := s.turns[id]
	if t == nil {
		t = &turn{taken: make(chan struct{}, 1)}
		s.turns[id] = t
	}
	t.waiting++
	s.mu.Unlock()
	leave := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if t.waiting--; t.waiting == 0 {
			delete(s.turns, id)
		}
	}
	select {
	case t.taken <- struct{}{}:
		return func() { <-t.taken; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, context.Cause(ctx)
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
		s.tellInUse()
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

// VolumesInUse returns the volumes that must not be detached from this machine, sorted. It is nil as long as it is not known what an earlier
// agent left: then what is written of it holds.
func (m *Manager) VolumesInUse() []v1.UniqueVolumeName {
	m.csi.mu.Lock()
	defer m.csi.mu.Unlock()
	return m.csi.inUse()
}

// tellInUse says that VolumesInUse has changed, if it has.
func (s *csiState) tellInUse() {
	s.mu.Lock()
	now := s.inUse()
	changed := !slices.Equal(now, s.told)
	s.told = now
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

// NodeChanged says that the Node, which tells what is attached, has changed.
func (m *Manager) NodeChanged() {
	m.csi.note(func() {
		close(m.csi.changed)
		m.csi.changed = make(chan struct{})
	})
}

// DriversChanged says that drivers have come or gone: whatever waits for one is tried again.
func (m *Manager) DriversChanged() {
	var waiting []pod.UID
	m.csi.note(func() {
		for uid := range m.csi.waiting {
			waiting = append(waiting, uid)
		}
		clear(m.csi.waiting)
		clear(m.csi.expands)
		for _, g := range m.csi.growing {
			g.asked = true
		}
		for _, u := range m.csi.unstaging {
			u.retry = time.Time{}
		}
	})
	for _, uid := range waiting {
		m.csi.Wake(uid)
	}
	m.csi.wakeUp()
}

// driver returns the registered driver. If it is missing, the pod is woken when it comes.
func (m *Manager) driver(uid pod.UID, name string) (*csi.Driver, error) {
	if m.csi.Drivers == nil {
		return nil, csiError("there are no CSI drivers here")
	}
	d, err := m.csi.Drivers.Driver(name)
	if err == nil {
		return d, nil
	}
	m.csi.note(func() { m.csi.waiting[uid] = true })
	if d, again := m.csi.Drivers.Driver(name); again == nil { // it came meanwhile
		return d, nil
	}
	return nil, csiError("%w", err)
}
