package volumes

import (
	"context"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"
)

// computeFileLabel returns the label of files for processes with the options: the policy's, with the user and the level of the options. Without a level
// the runtime chooses one for each container, so that there is none to mount with: "".
func computeFileLabel(policy string, o *v1.SELinuxOptions) string {
	parts := strings.SplitN(policy, ":", 4)
	if o == nil || o.Level == "" || len(parts) < 3 {
		return ""
	}
	if o.User != "" {
		parts[0] = o.User
	}
	return strings.Join(append(parts[:3:3], o.Level), ":")
}

// computeMountLabel returns the label with which the pod's volumes of these names are to be mounted, "" for none: that of all containers that mount
// them. Several are an error.
func computeMountLabel(p *v1.Pod, names []string, policy string) (string, error) {
	var labels []string
	for _, c := range containersOf(p) {
		if !slices.ContainsFunc(c.VolumeMounts, func(m v1.VolumeMount) bool { return slices.Contains(names, m.Name) }) {
			continue
		}
		var o *v1.SELinuxOptions
		if p.Spec.SecurityContext != nil {
			o = p.Spec.SecurityContext.SELinuxOptions
		}
		if c.SecurityContext != nil && c.SecurityContext.SELinuxOptions != nil {
			o = c.SecurityContext.SELinuxOptions
		}
		labels = append(labels, computeFileLabel(policy, o))
	}
	slices.Sort(labels)
	labels = slices.Compact(labels)
	switch len(labels) {
	case 0:
		return "", nil
	case 1:
		return labels[0], nil
	}
	return "", fmt.Errorf("multiple SELinux labels found: %s", strings.Join(labels, ","))
}

// isMountedWithLabel reports whether the volume is mounted with a label at all, rather than relabelled file by file (KEP-1710).
func isMountedWithLabel(p *v1.Pod, v csiVolume, object *storagev1.CSIDriver, modes LabelledModes) bool {
	switch {
	case v.block || object == nil || !ptr.Deref(object.Spec.SELinuxMount, false):
		return false
	case p.Spec.SecurityContext != nil && ptr.Deref(p.Spec.SecurityContext.SELinuxChangePolicy, "") == v1.SELinuxChangePolicyRecursive:
		return false
	}
	return modes == AllModes || slices.Equal(v.accessModes, []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod})
}

// LabelledModes are the access modes of volumes that are mounted with a label.
type LabelledModes int

const (
	// OnePod: volumes that are for one pod alone.
	OnePod LabelledModes = iota
	// AllModes: every volume (feature gate SELinuxMount).
	AllModes
)

// withLabel returns the volume with the label with which it is to be mounted for the pod. It is the caller's turn with the volume. Pods that have it at
// the same time agree on the label; what an earlier pod left staged with another one is unstaged first.
func (m *Manager) withLabel(ctx context.Context, p *v1.Pod, v csiVolume, object *storagev1.CSIDriver) (csiVolume, error) {
	if policy := m.csi.FileLabel(); policy != "" && isMountedWithLabel(p, v, object, m.csi.LabelledModes) {
		var err error
		if v.label, err = computeMountLabel(p, namesOf(p, v), policy); err != nil {
			return v, err
		}
	}
	var has string
	var known, others, staged bool
	m.csi.note(func() {
		has, known = m.csi.labels[v.csiID]
		_, staged = m.csi.staged[v.csiID]
		for uid := range m.csi.users[v.csiID] {
			others = others || uid != p.UID
		}
		if !known {
			m.csi.labels[v.csiID] = v.label
		}
	})
	switch {
	case !known || has == v.label:
		return v, nil
	case others:
		return v, fmt.Errorf("conflicting SELinux labels of volume %s: %q and %q", v.specName, has, v.label)
	case staged:
		if err := m.unstageAlone(ctx, v.csiID); err != nil {
			return v, fmt.Errorf("waiting for unmount of volume %q, because it is already mounted to a different pod with a different SELinux label: %w", v.specName, err)
		}
	}
	m.csi.note(func() {
		delete(m.csi.staged, v.csiID)
		m.csi.labels[v.csiID] = v.label
	})
	return v, nil
}

// namesOf returns the names under which the pod has the volume.
func namesOf(p *v1.Pod, v csiVolume) []string {
	if v.claim == nil {
		return []string{v.specName}
	}
	var names []string
	for i := range p.Spec.Volumes {
		if claim, _ := claimOf(p, &p.Spec.Volumes[i]); claim == v.claim.Name {
			names = append(names, p.Spec.Volumes[i].Name)
		}
	}
	return names
}
