package volumes

import (
	"context"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"berth/internal/pod"
)

// computeFileLabel returns the file label for processes with the options: the policy's, with user
// and level of the options. Without a level it returns "", because the runtime then chooses one for
// each container.
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

// computeMountLabel returns the label with which the pod's volumes of these names are mounted, ""
// for none: the common label of all containers that mount them. Different labels are an error.
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

// isMountedWithLabel reports whether the volume is mounted with a label, rather than relabelled
// file by file (KEP-1710).
func isMountedWithLabel(v csiVolume, modes LabelledModes) bool {
	p := v.pod
	switch {
	case v.block || v.object == nil || !ptr.Deref(v.object.Spec.SELinuxMount, false):
		return false
	case p.Spec.SecurityContext != nil && ptr.Deref(p.Spec.SecurityContext.SELinuxChangePolicy, "") == v1.SELinuxChangePolicyRecursive:
		return false
	}
	return modes == AllModes || slices.Equal(v.accessModes, []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod})
}

// LabelledModes are the access modes of volumes that are mounted with a label.
type LabelledModes int

const (
	// OnePod selects ReadWriteOncePod volumes only.
	OnePod LabelledModes = iota
	// AllModes selects every volume (feature gate SELinuxMount).
	AllModes
)

// mountLabel is the label with which a volume is mounted, "" for none, and the pods that use it
// with this label, or are about to. A pod with another label is not recorded: two such pods would
// wait for each other.
type mountLabel struct {
	text string
	pods map[pod.UID]bool
}

// setLabel records the label of a volume, and its pods. The caller holds s.mu.
func (s *csiState) setLabel(id csiID, text string, pods ...pod.UID) {
	l := s.labels[id]
	if l == nil {
		l = &mountLabel{pods: map[pod.UID]bool{}}
		s.labels[id] = l
	}
	l.text = text
	for _, uid := range pods {
		l.pods[uid] = true
	}
}

// withLabel returns the volume with the label for the pod's mount. The caller holds the volume's
// lock. Concurrent pods must have the same label; if an earlier pod left the volume staged with
// another one, it is unstaged first. A volume that is mounted for the pod keeps its label, even if
// driver or agent have been reconfigured.
func (c *csiKind) withLabel(ctx context.Context, v csiVolume) (csiVolume, error) {
	var wrong error
	if policy := c.config.FileLabel(); policy != "" && isMountedWithLabel(v, c.config.LabelledModes) {
		v.label, wrong = computeMountLabel(v.pod, namesOf(v), policy)
	}
	var has string
	var known, others, staged, agreed, had bool
	c.state.locked(func() {
		l := c.state.labels[v.id]
		if known = l != nil; known {
			has = l.text
			for uid := range l.pods {
				others = others || uid != v.pod.UID
			}
			had = l.pods[v.pod.UID]
		}
		_, staged = c.state.staged[v.id]
		if agreed = wrong == nil && (!known || has == v.label); agreed {
			c.state.setLabel(v.id, v.label, v.pod.UID)
		}
	})
	if agreed {
		if v.label != "" && !had {
			c.host.metrics.labelAgreed(v)
		}
		return v, nil
	}
	mounted, err := c.host.isMounted(c.dirs.target(v))
	switch {
	case err != nil:
		return v, err
	case mounted && known:
		v.label = has
		return v, nil
	case wrong != nil:
		c.host.metrics.podMismatch(v)
		return v, wrong
	case others:
		c.host.metrics.volumeMismatch(v)
		return v, fmt.Errorf("conflicting SELinux labels of volume %s: %q and %q", v.specName, has, v.label)
	case staged:
		if err := c.reconciler.unstageAlone(ctx, v.id); err != nil {
			return v, fmt.Errorf("waiting for unmount of volume %q, because it is already mounted to a different pod with a different SELinux label: %w", v.specName, err)
		}
	}
	c.state.locked(func() {
		delete(c.state.staged, v.id)
		c.state.setLabel(v.id, v.label, v.pod.UID)
	})
	return v, nil
}

// namesOf returns the names of the volume in the pod's spec.
func namesOf(v csiVolume) []string {
	if v.claim == nil {
		return []string{v.specName}
	}
	var names []string
	p := v.pod
	for i := range p.Spec.Volumes {
		if claim, _ := claimOf(p, &p.Spec.Volumes[i]); claim == v.claim.Name {
			names = append(names, p.Spec.Volumes[i].Name)
		}
	}
	return names
}
