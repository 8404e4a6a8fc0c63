package volumes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	mount "k8s.io/mount-utils"
	"k8s.io/utils/ptr"

	"berth/internal/beneath"
	"berth/internal/crispec"
	"berth/internal/csi"
)

// Keys of what a driver is told of the pod (Kubernetes CSI documentation, "Pod Info on Mount", "Token Requests").
const (
	podNameKey        = "csi.storage.k8s.io/pod.name"
	podNamespaceKey   = "csi.storage.k8s.io/pod.namespace"
	podUIDKey         = "csi.storage.k8s.io/pod.uid"
	serviceAccountKey = "csi.storage.k8s.io/serviceAccount.name"
	ephemeralKey      = "csi.storage.k8s.io/ephemeral"
	tokensKey         = "csi.storage.k8s.io/serviceAccount.tokens"
)

// csiError is an error in the words of the plugin.
func csiError(format string, args ...any) error {
	return fmt.Errorf("kubernetes.io/csi: "+format, args...)
}

// setupCSI has the driver stage the volume, unless it is, and publish it for the pod.
func (m *Manager) setupCSI(ctx context.Context, p *v1.Pod, podDir string, v csiVolume) outcome {
	if !beneath.IsElement(v.driver) || !beneath.IsElement(v.specName) {
		return outcome{err: errors.New("the names of driver and volume must be file names")}
	}
	give, err := m.csi.take(ctx, v.csiID)
	if err != nil {
		return outcome{err: err}
	}
	defer give()
	m.csi.use(p.UID, v.csiID)
	object, err := m.csi.Objects.CSIDriver(ctx, v.driver)
	if err != nil {
		return outcome{err: csiError("read CSIDriver %s: %w", v.driver, err)}
	}
	if v, err = m.withLabel(ctx, p, podDir, v, object); err != nil {
		return outcome{block: v.block, step: "MountDevice", err: err}
	}
	again := object != nil && ptr.Deref(object.Spec.RequiresRepublish, false)
	path := m.target(p.UID, podDir, v)
	done := outcome{block: v.block, mounted: crispec.Volume{HostPath: path, ReadOnly: v.readOnly}}
	if v.block {
		done.mounted.HostPath = diskLink(podDir, v.specName)
	}
	here := publication{p.UID, v.specName}
	var published bool
	m.csi.note(func() {
		published = m.csi.published[here]
		if again {
			m.csi.republish[p.UID] = true
		}
	})
	if !published || again {
		if step, err := m.publish(ctx, p, podDir, v, object); err != nil {
			m.csi.note(func() { m.csi.waiting[p.UID] = true }) // a driver that has died comes back
			return outcome{block: v.block, step: step, err: err}
		}
		if !published && v.claim != nil {
			if err := m.growMounted(ctx, p, podDir, v); err != nil {
				m.csi.note(func() { m.csi.waiting[p.UID] = true })
				return outcome{block: v.block, step: "Setup failed while expanding volume", err: err}
			}
		}
		done.fresh = !published
		m.csi.note(func() { m.csi.published[here] = true })
		m.csi.wakeUp()
	}
	done.mounted.SELinuxRelabel = !v.block && !v.readOnly && v.label == "" && hasSecurityLabels(path)
	return done
}

// publish does all the steps that end with NodePublishVolume, and returns the one in which an error came.
func (m *Manager) publish(ctx context.Context, p *v1.Pod, podDir string, v csiVolume, object *storagev1.CSIDriver) (step string, err error) {
	driver, err := m.driver(p.UID, v.driver)
	if err != nil {
		return "MountDevice", err
	}
	if err := checkLifecycle(v, object); err != nil {
		return "SetUp", err
	}
	attached, err := m.attachmentMetadata(ctx, v, object)
	if err != nil {
		return "WaitForAttach", err
	}
	capabilities, err := driver.Capabilities(ctx)
	if err != nil {
		return "MountDevice", csiError("capabilities of the driver: %w", err)
	}
	r := &csiapi.NodePublishVolumeRequest{
		VolumeId: v.handle, PublishContext: attached, TargetPath: m.target(p.UID, podDir, v), Readonly: v.readOnly,
		VolumeCapability: capabilityOf(p, v, capabilities), VolumeContext: maps.Clone(v.attributes),
	}
	if v.block {
		return m.publishDisk(ctx, driver, p, podDir, v, object, capabilities, r)
	}
	if v.pv != nil && capabilities[csiapi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME] {
		r.StagingTargetPath = m.stagePath(v.csiID)
		if err := m.stage(ctx, driver, v, r); err != nil {
			return "MountDevice", err
		}
	}
	if err := m.describePod(ctx, p, v, object, r); err != nil {
		return "SetUp", err
	}
	dir := publishDir(podDir, v.specName)
	existed, err := m.writeCSIData(dir, csiData{
		DriverName: v.driver, VolumeHandle: v.handle, SpecVolID: v.specName, NodeName: m.csi.NodeName,
		AttachmentID: v.attachment(m.csi.NodeName), Lifecycle: v.lifecycle(), Label: v.label,
	})
	if err == nil {
		if err = driver.Publish(ctx, r); err == nil {
			m.ownCSI(p, v, object, r)
			return "", nil
		}
		err = csiError("mounter.SetUpAt failed: %w", err)
	}
	// What may have been mounted is unpublished when the pod goes; what was there before stays.
	if !existed && !csi.IsUncertain(err) {
		err = errors.Join(err, m.removeMounted(dir, "mount"))
	}
	return "SetUp", err
}

// checkLifecycle refuses a volume that the driver is not made for.
func checkLifecycle(v csiVolume, object *storagev1.CSIDriver) error {
	switch {
	case object == nil && v.pv == nil:
		return csiError("volume mode %q not supported by driver %s (no CSIDriver object)", v.lifecycle(), v.driver)
	case object == nil || slices.Contains(object.Spec.VolumeLifecycleModes, v.lifecycle()):
		return nil
	case len(object.Spec.VolumeLifecycleModes) == 0 && v.pv != nil: // the default
		return nil
	}
	return csiError("volume mode %q not supported by driver %s (only supports %q)", v.lifecycle(), v.driver, object.Spec.VolumeLifecycleModes)
}

// stage has the driver stage the volume, unless this agent saw that it is.
func (m *Manager) stage(ctx context.Context, driver *csi.Driver, v csiVolume, published *csiapi.NodePublishVolumeRequest) error {
	var staged bool
	m.csi.note(func() { staged = m.csi.staged[v.csiID] })
	if staged {
		return nil
	}
	secrets, err := m.secret(ctx, v.stageSecret)
	if err != nil {
		return err
	}
	path := m.stagePath(v.csiID)
	if err := m.files.Ensure(path, 0o750, 0o750); err != nil {
		return csiError("make the directory to stage in: %w", err)
	}
	m.csi.note(func() { m.csi.staged[v.csiID] = false })
	existed, err := m.writeCSIData(m.stageDir(v.csiID), csiData{DriverName: v.driver, VolumeHandle: v.handle, Label: v.label})
	if err == nil {
		err = driver.Stage(ctx, &csiapi.NodeStageVolumeRequest{
			VolumeId: v.handle, PublishContext: published.PublishContext, StagingTargetPath: path, VolumeCapability: published.VolumeCapability,
			Secrets: secrets, VolumeContext: v.attributes,
		})
	}
	if err == nil {
		m.csi.note(func() { m.csi.staged[v.csiID] = true })
		return nil
	}
	if !existed && !csi.IsUncertain(err) {
		if e := m.removeMounted(m.stageDir(v.csiID), "globalmount"); e != nil {
			return csiError("attacher.MountDevice failed: %w", errors.Join(err, e))
		}
		m.csi.note(func() { delete(m.csi.staged, v.csiID) })
	}
	return csiError("attacher.MountDevice failed: %w", err)
}

// describePod adds to the request what the driver wants to know of the pod, and the Secret that it is to be given.
func (m *Manager) describePod(ctx context.Context, p *v1.Pod, v csiVolume, object *storagev1.CSIDriver, r *csiapi.NodePublishVolumeRequest) error {
	secrets, err := m.secret(ctx, v.publishSecret)
	if err != nil {
		return csiError("fetching NodePublishSecretRef %s/%s failed: %w", v.publishSecret.Namespace, v.publishSecret.Name, err)
	}
	r.Secrets = secrets
	if object == nil {
		return nil
	}
	if r.VolumeContext == nil {
		r.VolumeContext = map[string]string{}
	}
	if ptr.Deref(object.Spec.PodInfoOnMount, false) {
		maps.Copy(r.VolumeContext, map[string]string{
			podNameKey: p.Name, podNamespaceKey: p.Namespace, podUIDKey: string(p.UID), serviceAccountKey: p.Spec.ServiceAccountName,
			ephemeralKey: strconv.FormatBool(v.pv == nil),
		})
	}
	if len(object.Spec.TokenRequests) == 0 || v.block { // the kubelet gives no tokens for disks
		return nil
	}
	type issued struct {
		Token               string    `json:"token"`
		ExpirationTimestamp time.Time `json:"expirationTimestamp"`
	}
	tokens := map[string]issued{}
	for _, t := range object.Spec.TokenRequests {
		token, expires, err := m.csi.Objects.DriverToken(ctx, p, t.Audience, t.ExpirationSeconds)
		if err != nil {
			return csiError("token for audience %q: %w", t.Audience, err)
		}
		tokens[t.Audience] = issued{token, expires.UTC()}
	}
	text, err := json.Marshal(tokens)
	if err != nil {
		return err
	}
	to := &r.VolumeContext
	if ptr.Deref(object.Spec.ServiceAccountTokenInSecrets, false) {
		to = &r.Secrets
	}
	if *to == nil {
		*to = map[string]string{}
	}
	(*to)[tokensKey] = string(text)
	return nil
}

// secret returns the content of the Secret, nil for none.
func (m *Manager) secret(ctx context.Context, ref *v1.SecretReference) (map[string]string, error) {
	if ref == nil {
		return nil, nil
	}
	s, err := m.csi.Objects.GetSecret(ctx, ref.Namespace, ref.Name)
	if err != nil {
		return nil, csiError("failed to find the secret %s in the namespace %s with error: %w", ref.Name, ref.Namespace, err)
	}
	out := make(map[string]string, len(s.Data))
	for key, value := range s.Data {
		out[key] = string(value)
	}
	return out, nil
}

// capabilityOf says how the volume is to be had.
func capabilityOf(p *v1.Pod, v csiVolume, can csi.Capabilities) *csiapi.VolumeCapability {
	mode := &csiapi.VolumeCapability_AccessMode{Mode: accessMode(v.accessModes, can[csiapi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER])}
	if v.block {
		return &csiapi.VolumeCapability{AccessMode: mode, AccessType: &csiapi.VolumeCapability_Block{Block: &csiapi.VolumeCapability_BlockVolume{}}}
	}
	how := &csiapi.VolumeCapability_MountVolume{FsType: v.fsType, MountFlags: v.mountOptions}
	if v.label != "" {
		how.MountFlags = append(slices.Clone(v.mountOptions), fmt.Sprintf("context=%q", v.label))
	}
	if gid := fsGroup(p); gid != nil && can[csiapi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP] {
		how.VolumeMountGroup = strconv.FormatInt(*gid, 10)
	}
	return &csiapi.VolumeCapability{AccessMode: mode, AccessType: &csiapi.VolumeCapability_Mount{Mount: how}}
}

// accessMode returns the first of the volume's modes as CSI has it. fine: the driver tells one writer on a node from several.
func accessMode(modes []v1.PersistentVolumeAccessMode, fine bool) csiapi.VolumeCapability_AccessMode_Mode {
	mode := v1.ReadWriteOnce
	if len(modes) > 0 {
		mode = modes[0]
	}
	switch {
	case mode == v1.ReadOnlyMany:
		return csiapi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	case mode == v1.ReadWriteMany:
		return csiapi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	case mode == v1.ReadWriteOncePod && fine:
		return csiapi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
	case fine:
		return csiapi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
	}
	return csiapi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
}

// ownCSI gives the files of the volume to the pod's fsGroup, where that is left to the node.
func (m *Manager) ownCSI(p *v1.Pod, v csiVolume, object *storagev1.CSIDriver, r *csiapi.NodePublishVolumeRequest) {
	if fsGroup(p) == nil || v.readOnly || r.VolumeCapability.GetMount().GetVolumeMountGroup() != "" {
		return
	}
	policy := storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy
	if object != nil {
		policy = ptr.Deref(object.Spec.FSGroupPolicy, policy)
	}
	switch policy {
	case storagev1.NoneFSGroupPolicy:
		return
	case storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy:
		once := slices.ContainsFunc(v.accessModes, func(a v1.PersistentVolumeAccessMode) bool { return a == v1.ReadWriteOnce || a == v1.ReadWriteOncePod })
		if v.fsType == "" || !once {
			return
		}
	}
	m.ownVolume(p, r.TargetPath)
}

// hasSecurityLabels reports whether what is mounted there keeps SELinux labels of files, so that the runtime can set them.
func hasSecurityLabels(path string) bool {
	points, err := mount.ParseMountInfo("/proc/self/mountinfo")
	if err != nil {
		return false
	}
	return slices.ContainsFunc(points, func(p mount.MountInfo) bool {
		return p.MountPoint == path && slices.Contains(append(slices.Clone(p.MountOptions), p.SuperOptions...), "seclabel")
	})
}
