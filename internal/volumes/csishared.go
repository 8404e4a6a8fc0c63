package volumes

import (
	"fmt"
	"path/filepath"

	"berth/internal/csi"
	"berth/internal/pod"
)

// csiShared is what all have in common that do something with volumes of CSI drivers.
type csiShared struct {
	*disks
	csi    *csiState
	claims *claims
}

// Paths of a volume; those of the kubelet, so that a machine can change between the two.

// stageDir is the directory of what all pods share of the volume; it is mounted at globalmount below it.
func (c *csiShared) stageDir(id csiID) string {
	return filepath.Join(c.root, "plugins/kubernetes.io/csi", id.driver, hash(id.handle))
}

func (c *csiShared) stagePath(id csiID) string { return filepath.Join(c.stageDir(id), "globalmount") }

// publishDir is the directory of the volume in the pod's folder; it is mounted at mount below it.
func publishDir(podDir, specName string) string {
	return filepath.Join(podDir, "volumes", csiPlugin, specName)
}

func publishPath(podDir, specName string) string {
	return filepath.Join(publishDir(podDir, specName), "mount")
}

// target is where the driver shows the volume to the pod.
func (c *csiShared) target(v csiVolume) string {
	if v.block {
		return c.diskOf(v.specName).target(v.pod.UID)
	}
	return publishPath(v.podDir, v.specName)
}

// staging is where the driver keeps what all pods share of the volume.
func (c *csiShared) staging(v csiVolume) string {
	if v.block {
		return c.diskOf(v.specName).staging
	}
	return c.stagePath(v.csiID)
}

// driver returns the registered driver. If it is missing, the pod is woken when it comes.
func (c *csiShared) driver(uid pod.UID, name string) (*csi.Driver, error) {
	if c.csi.Drivers == nil {
		return nil, csiError("there are no CSI drivers here")
	}
	d, err := c.csi.Drivers.Driver(name)
	if err == nil {
		return d, nil
	}
	c.csi.note(func() { c.csi.waiting[uid] = true })
	if d, again := c.csi.Drivers.Driver(name); again == nil { // it came meanwhile
		return d, nil
	}
	return nil, csiError("%w", err)
}

// csiError is an error in the words of the plugin.
func csiError(format string, args ...any) error {
	return fmt.Errorf("kubernetes.io/csi: "+format, args...)
}

// isPublished reports whether the volume is there for the pod, by this agent or by an earlier one.
func (c *csiShared) isPublished(v csiVolume) bool {
	var published bool
	c.csi.note(func() { published = c.csi.published[publication{v.pod.UID, v.specName}] })
	switch {
	case published:
		return true
	case v.block:
		number, err := c.shownDisk(c.target(v))
		return err == nil && number != 0
	}
	found, err := c.isMounted(publishPath(v.podDir, v.specName))
	return err == nil && found
}
