package eviction

// layout describes which file systems are shared.
type layout struct {
	// dedicated: images are on another device than the root directory. split: writable layers are
	// on another device than images.
	dedicated, split bool
}

// computeLayout compares the devices of the root directory, of images, and of writable layers.
func computeLayout(node, images, containers uint64) layout {
	return layout{dedicated: images != node, split: containers != images}
}

// withContainerFs returns the thresholds with those of containerfs derived from the layout: they
// equal those of the file system that holds writable layers, whatever is configured.
func (l layout) withContainerFs(ts []Threshold) []Threshold {
	from := map[Signal]Signal{NodeFsAvailable: ContainerFsAvailable, NodeFsInodesFree: ContainerFsInodesFree}
	if l.dedicated && !l.split {
		from = map[Signal]Signal{ImageFsAvailable: ContainerFsAvailable, ImageFsInodesFree: ContainerFsInodesFree}
	}
	var out []Threshold
	for _, t := range ts {
		if isContainerFs(t) {
			continue
		}
		out = append(out, t)
		if to, ok := from[t.Signal]; ok {
			t.Signal = to
			out = append(out, t)
		}
	}
	sortThresholds(out)
	return out
}

// isContainerFs reports whether the threshold is of the file system of writable layers. A
// configured one is ignored, as by the kubelet: it follows from nodefs or imagefs.
func isContainerFs(t Threshold) bool {
	return t.Signal == ContainerFsAvailable || t.Signal == ContainerFsInodesFree
}

// files are types of files that pods have on a disk.
type files uint8

const (
	rootfs files = 1 << iota // writable layers of containers
	logs
	volumes // emptyDirs on disk, configMaps
)

// remedy is how a file system that is short is relieved.
type remedy struct {
	containers, images bool  // dead containers and unused images are removed first
	rank               files // the files that pods are ranked by
}

// remedyOf returns the remedy of a signal; nothing is removed for memory and tasks.
func (l layout) remedyOf(s Signal) remedy {
	of := func(available, inodesFree Signal) bool { return s == available || s == inodesFree }
	onNode, onImages := of(NodeFsAvailable, NodeFsInodesFree), of(ImageFsAvailable, ImageFsInodesFree)
	onContainers := of(ContainerFsAvailable, ContainerFsInodesFree)
	switch {
	case !onNode && !onImages && !onContainers:
		return remedy{}
	case !l.dedicated && !l.split:
		return remedy{containers: true, images: true, rank: rootfs | logs | volumes}
	case !l.split && onNode:
		return remedy{rank: logs | volumes}
	case !l.split:
		return remedy{containers: true, images: true, rank: rootfs}
	case onImages:
		return remedy{images: true} // it holds no files of pods
	}
	return remedy{containers: true, rank: rootfs | logs | volumes}
}

func isProcesses(t Threshold) bool {
	return t.Signal.resource() == memory || t.Signal.resource() == pids
}
