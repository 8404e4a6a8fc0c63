package volumes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"berth/internal/pod"
	"berth/internal/runtime/crispec"
)

// kind is a type of volume. Volumes are handled in parallel, so it is safe for concurrent use.
type kind interface {
	// prepare reads the inputs of the volume, and waits for prerequisites such as attachment. It
	// creates nothing.
	prepare(ctx context.Context, v *volume) error
	// setup makes the volume available for its pod. It is idempotent. A volume without inputs stays
	// as it is.
	setup(ctx context.Context, v *volume) (outcome, error)
	// teardown releases what unmounting does not, including the state of an earlier agent, and
	// deletes the pod's entries.
	teardown(ctx context.Context, uid pod.UID, podDir string) error
	// use returns the usage of the volume; errors.ErrUnsupported if it cannot be measured.
	use(ctx context.Context, v *volume) (Use, error)
}

// kinds is the table of all kinds, by the API field of a volume's source: of a pod's volume, of a
// persistent volume, or of both.
var kinds = map[string]registration{
	"configMap":   {plugin: "kubernetes.io~configmap", owned: true, open: newConfigMaps},
	"csi":         {plugin: csiPlugin, disks: true, open: newCSI, counted: csiCounted},
	"downwardAPI": {plugin: "kubernetes.io~downward-api", owned: true, open: newDownwardAPI},
	"emptyDir":    {plugin: emptyDirPlugin, owned: true, open: newEmptyDirs, lacks: emptyDirLacks},
	"hostPath":    {plugin: "kubernetes.io~host-path", open: newHostPaths},
	"local":       {plugin: localPlugin, disks: true, open: newLocal},
	"nfs":         {plugin: nfsPlugin, open: newNFS},
	"projected":   {plugin: "kubernetes.io~projected", owned: true, open: newProjected},
	"secret":      {plugin: "kubernetes.io~secret", owned: true, open: newSecrets},

	// A claim has the kind of its persistent volume.
	"ephemeral":             {},
	"persistentVolumeClaim": {},
	// The runtime mounts it.
	"image": {},
}

// registration is a row of the table.
type registration struct {
	// plugin is the kubelet's name of the type with the slash escaped: the name of its directories.
	plugin string
	// owned: everything in its directories belongs to the agent and is deleted with them. Otherwise
	// only empty directories are removed.
	owned bool
	// disks: its persistent volumes may have volumeMode Block.
	disks bool
	// open returns the kind; nil: such a volume needs no work.
	open func(*parts) kind
	// counted returns the plugin name for operation metrics; nil: that of plugin.
	counted func(*volume) string
	// lacks returns the unsupported field below the source, and why; "" if all are supported. nil:
	// always.
	lacks func(*v1.Volume) (field, why string)
}

// parts are the dependencies of kinds.
type parts struct {
	*host
	folders *folders
	reader  *reader
	disks   *disks
	claims  *claims
	drivers *csiKind
}

// volume is one volume of a pod.
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

// outcome is the result of a volume's setup.
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

// isReadOnly reports whether the volume's claim is used read-only.
func (v *volume) isReadOnly() bool { return v.bound != nil && v.bound.readOnly }

// counted returns the plugin name for operation metrics.
func (v *volume) counted() string {
	switch r := kinds[v.source()]; {
	case r.counted != nil:
		return r.counted(v)
	case r.plugin != "":
		return pluginName(r.plugin)
	}
	return "<n/a>"
}

// plain is embedded by kinds that read nothing, mount only in their own directories, and have no
// usage.
type plain struct{}

func (plain) prepare(context.Context, *volume) error          { return nil }
func (plain) teardown(context.Context, pod.UID, string) error { return nil }
func (plain) use(context.Context, *volume) (Use, error)       { return Use{}, errors.ErrUnsupported }

// refused is the kind of all sources that are not in the table.
type refused struct{ plain }

func (refused) setup(_ context.Context, v *volume) (outcome, error) {
	if v.bound != nil {
		return outcome{}, &Error{Step: "FindPluginBySpec", Err: fmt.Errorf("persistent volumes of type %s are not supported yet", v.source())}
	}
	return outcome{}, fmt.Errorf("volumes of type %s are not supported yet", v.source())
}
