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

// kind is one type of volume. Volumes are handled side by side, so it is safe for concurrent use.
type kind interface {
	// prepare reads what the volume is made of, and waits for what others have to do first. It
	// makes nothing.
	prepare(ctx context.Context, v *volume) error
	// setup makes the volume present for its pod. It is idempotent. A volume that was not prepared
	// this time goes on showing what it shows.
	setup(ctx context.Context, v *volume) (outcome, error)
	// teardown takes from the pod what unmounting does not, by whatever agent it was given that,
	// and forgets the pod.
	teardown(ctx context.Context, uid pod.UID, podDir string) error
	// use returns what is used of the volume; errors.ErrUnsupported if that cannot be known.
	use(ctx context.Context, v *volume) (Use, error)
}

// kinds is the table of all kinds, by the field of the API that a volume's source is in: of a pod's
// volume, of a persistent volume, or of both.
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

	// A claim is of the kind of what it is bound to.
	"ephemeral":             {},
	"persistentVolumeClaim": {},
	// The runtime mounts it.
	"image": {},
}

// registration is a row of the table.
type registration struct {
	// plugin is the kubelet's name of the type with the slash escaped: so its folders are called.
	plugin string
	// owned: all that is in its folders is the agent's, and goes with them. Of others only empty
	// folders go.
	owned bool
	// disks: its persistent volumes may have volumeMode Block.
	disks bool
	// open returns the kind; nil: there is nothing to do for such a volume.
	open func(*parts) kind
	// counted returns the name under which operations on the volume are counted; nil: that of the
	// plugin.
	counted func(*volume) string
	// lacks returns what this version does not do of such a volume: the field below the source, and
	// why. "" is nothing; nil: never.
	lacks func(*v1.Volume) (field, why string)
}

// parts are what kinds are built from.
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
	bound  *bound // what its claim is bound to; nil without a claim, or as long as that was not read
	input  any    // what its kind has read, which nobody else looks into; nil: nothing
	live   bool   // what it shows may change: it wants a setup in each pass

	// What came of the last that was done with it.
	done    outcome
	failure *Error
}

// outcome is what setting up a volume led to.
type outcome struct {
	mounted crispec.Volume
	fresh   bool // something was made, in contrast to found
	// shared is, of a disk, the folder where each pod that has it is shown it.
	shared string
}

// source returns the field of the API that tells what the volume is made of.
func (v *volume) source() string {
	if v.bound != nil {
		return sourceName(&v.bound.Spec.PersistentVolumeSource)
	}
	return cmp.Or(sourceName(&v.spec.VolumeSource), "emptyDir") // without any (Kubernetes API, Volume)
}

// name returns the name of the volume's folder.
func (v *volume) name() string {
	if v.bound != nil {
		return v.bound.Name
	}
	return v.spec.Name
}

// dir returns the volume's folder in that of its pod.
func (v *volume) dir() string {
	return filepath.Join(v.podDir, "volumes", kinds[v.source()].plugin, v.name())
}

// isBlock reports whether the pod is given the disk, rather than the files on it.
func (v *volume) isBlock() bool {
	return v.bound != nil && ptr.Deref(v.bound.Spec.VolumeMode, v1.PersistentVolumeFilesystem) == v1.PersistentVolumeBlock
}

// isReadOnly reports whether the volume's claim is used to read only.
func (v *volume) isReadOnly() bool { return v.bound != nil && v.bound.readOnly }

// counted returns the name under which operations on the volume are counted.
func (v *volume) counted() string {
	switch r := kinds[v.source()]; {
	case r.counted != nil:
		return r.counted(v)
	case r.plugin != "":
		return pluginName(r.plugin)
	}
	return "<n/a>"
}

// plain is what a kind has that reads nothing, mounts at most in its own folders, and cannot be
// measured.
type plain struct{}

func (plain) prepare(context.Context, *volume) error          { return nil }
func (plain) teardown(context.Context, pod.UID, string) error { return nil }
func (plain) use(context.Context, *volume) (Use, error)       { return Use{}, errors.ErrUnsupported }

// refused is the kind of all that is not in the table.
type refused struct{ plain }

func (refused) setup(_ context.Context, v *volume) (outcome, error) {
	if v.bound != nil {
		return outcome{}, &Error{Step: "FindPluginBySpec", Err: fmt.Errorf("persistent volumes of type %s are not supported yet", v.source())}
	}
	return outcome{}, fmt.Errorf("volumes of type %s are not supported yet", v.source())
}
