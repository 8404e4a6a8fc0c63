package volumes

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"berth/internal/pod"
	"berth/internal/runtime/crispec"
)

// kind is a type of volume. Volumes are handled in parallel, so it is safe for concurrent use. A
// kind may also be a preparer, a releaser and a measurer.
type kind interface {
	// setup makes the volume available for its pod. It is idempotent. A volume without inputs stays
	// as it is.
	setup(ctx context.Context, v *volume) (outcome, error)
}

// preparer is a kind whose volumes need inputs or prerequisites.
type preparer interface {
	// prepare reads the inputs of the volume, and waits for prerequisites such as attachment. It
	// creates nothing.
	prepare(ctx context.Context, v *volume) error
}

// releaser is a kind that holds more than mounts and files in the directories of its volumes.
type releaser interface {
	// teardown releases what unmounting does not, including the state of an earlier agent, and
	// deletes the pod's entries.
	teardown(ctx context.Context, uid pod.UID, podDir string) error
}

// measurer is a kind whose volumes have a usage.
type measurer interface {
	// use returns the usage of the volume; errors.ErrUnsupported if it cannot be measured.
	use(ctx context.Context, v *volume) (Use, error)
}

// kinds is the table of all kinds, by the API field of a volume's source: of a pod's volume, of a
// persistent volume, or of both.
var kinds = map[string]registration{
	"configMap":   {plugin: "kubernetes.io~configmap", owned: true},
	"csi":         {plugin: csiPlugin, block: true},
	"downwardAPI": {plugin: "kubernetes.io~downward-api", owned: true},
	"emptyDir":    {plugin: emptyDirPlugin, owned: true},
	"hostPath":    {plugin: "kubernetes.io~host-path"},
	"local":       {plugin: localPlugin, block: true},
	"nfs":         {plugin: nfsPlugin},
	"projected":   {plugin: "kubernetes.io~projected", owned: true},
	"secret":      {plugin: "kubernetes.io~secret", owned: true},

	// A claim has the kind of its persistent volume.
	"ephemeral":             {},
	"persistentVolumeClaim": {},
	// The runtime mounts it.
	"image": {},
}

type registration struct {
	// plugin is the kubelet's name of the type with the slash escaped: the name of its directories.
	plugin string
	// owned: everything in its directories belongs to the agent and is deleted with them. Otherwise
	// only empty directories are removed.
	owned bool
	// block: its persistent volumes may have volumeMode Block.
	block bool
}

// rowOf returns the row of the volume plugin with the directory name.
func rowOf(plugin string) (registration, bool) {
	for _, r := range kinds {
		if r.plugin == plugin && plugin != "" {
			return r, true
		}
	}
	return registration{}, false
}

// newKinds returns the kinds by their names in the table.
func newKinds(c *Config, disks *disks, resizes *resizes, csi *csiKind) map[string]kind {
	h := disks.host
	folders := &folders{host: h, allocatableMemory: c.AllocatableMemory, tmpfsNoswap: sync.OnceValue(TmpfsKnowsNoswap)}
	reader := &reader{objects: c.Objects, certificates: c.Certificates, node: c.Node}
	// Secrets must not reach a disk; fields of pods and sources of projected volumes may be secret.
	onDisk := &payloads{host: h, folders: folders, reader: reader, medium: v1.StorageMediumDefault}
	inMemory := &payloads{host: h, folders: folders, reader: reader, medium: v1.StorageMediumMemory}
	return map[string]kind{
		"configMap":   onDisk,
		"csi":         csi,
		"downwardAPI": inMemory,
		"emptyDir":    emptyDirs{folders},
		"hostPath":    hostPaths{},
		"local":       &locals{host: h, disks: disks, resizes: resizes, locks: newVolumeLocks(), firsts: map[string]pod.UID{}},
		"nfs":         nfs{h},
		"projected":   inMemory,
		"secret":      inMemory,
	}
}

type volume struct {
	pod    *v1.Pod
	podDir string
	spec   *v1.Volume
	bound  *bound // its claim's persistent volume; nil without a claim or before it is read
	input  any    // inputs that its kind has read; nil: none
	live   bool   // its content may change: it needs a setup in each pass

	// Results of the last operation.
	done    outcome
	failure *Error
}

type outcome struct {
	mounted crispec.Volume
	fresh   bool // something was created
	// shared is, for a block volume, the directory of all pods' bind mounts.
	shared string
}

// source returns the API field of the volume's source.
func (v *volume) source() string {
	if v.bound != nil {
		return sourceName(&v.bound.Spec.PersistentVolumeSource)
	}
	return cmp.Or(sourceName(&v.spec.VolumeSource), "emptyDir") // the default (Kubernetes API, Volume)
}

// name returns the name of the volume's directory.
func (v *volume) name() string {
	if v.bound != nil {
		return v.bound.Name
	}
	return v.spec.Name
}

// dir returns the volume's directory in that of its pod.
func (v *volume) dir() string {
	return filepath.Join(v.podDir, "volumes", kinds[v.source()].plugin, v.name())
}

// isBlock reports whether the pod gets the block device, rather than a filesystem.
func (v *volume) isBlock() bool {
	return v.bound != nil && ptr.Deref(v.bound.Spec.VolumeMode, v1.PersistentVolumeFilesystem) == v1.PersistentVolumeBlock
}

func (v *volume) isReadOnly() bool { return v.bound != nil && v.bound.readOnly }

// counted returns the plugin name for operation metrics.
func (v *volume) counted() string {
	switch plugin := kinds[v.source()].plugin; plugin {
	case csiPlugin:
		return csiPluginName(csiOf(v).id.driver)
	case "":
		return "<n/a>"
	default:
		return pluginName(plugin)
	}
}

// unsupported is the kind of all sources that are not in the table.
type unsupported struct{}

func (unsupported) setup(_ context.Context, v *volume) (outcome, error) {
	if v.bound != nil {
		return outcome{}, &Error{Step: "FindPluginBySpec", Err: fmt.Errorf("persistent volumes of type %s are not supported yet", v.source())}
	}
	return outcome{}, fmt.Errorf("volumes of type %s are not supported yet", v.source())
}
