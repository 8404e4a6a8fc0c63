package logs

import (
	"path/filepath"
)

// maxFileName is the maximum length of a file name on Linux file systems, in bytes.
const maxFileName = 255

// PodDir returns the directory of a pod's logs: <podLogsDir>/<namespace>_<name>_<uid>. It is the
// sandbox's log_directory.
func PodDir(podLogsDir, namespace, name, uid string) string {
	return filepath.Join(podLogsDir, namespace+"_"+name+"_"+uid)
}

// LinkPath returns the symlink by which log shippers find a container's log:
// <containerLogsDir>/<pod>_<namespace>_<container>-<id>.log. The file name is truncated to 255
// bytes including the suffix.
func LinkPath(containerLogsDir, podName, namespace, container, id string) string {
	const suffix = ".log"
	name := podName + "_" + namespace + "_" + container + "-" + id
	if len(name) > maxFileName-len(suffix) {
		name = name[:maxFileName-len(suffix)]
	}
	return filepath.Join(containerLogsDir, name+suffix)
}
