package logs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"

	"golang.org/x/sys/unix"

	"berth/internal/host/safepath"
)

// Files returns the root for access to logs in a directory of all pods' logs: no links are
// followed, because pods that have the host's logs mounted may create links there.
func Files(podLogsDir string) safepath.Root { return safepath.Root(filepath.Dir(podLogsDir)) }

// FilesOf returns the root for access to the directory of a container's log, whose path is as in
// CRI: <podLogsDir>/<pod>/<container>/<restartCount>.log.
func FilesOf(path string) safepath.Root { return Files(filepath.Dir(filepath.Dir(filepath.Dir(path)))) }

// dockerLog matches Docker's log files, which the logs of its pods link to.
var dockerLog = regexp.MustCompile(`^/.*/containers/([0-9a-f]{64})/([0-9a-f]{64})-json\.log$`)

// Open opens the log of a container. Only Docker's links are followed; for others the error is
// ELOOP.
func Open(path string) (*os.File, error) {
	files := FilesOf(path)
	f, err := files.OpenFile(path, os.O_RDONLY, 0)
	if errors.Is(err, unix.ELOOP) {
		if target := linkOf(files, path); target != "" {
			f, err = safepath.OpenReal(target, os.O_RDONLY)
		}
	}
	if err != nil {
		return nil, err
	}
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, errors.Join(err, &fs.PathError{Op: "read", Path: path, Err: errors.New("it is not a regular file")}, f.Close())
	}
	return f, nil
}

// linkOf returns the target of a link of Docker's, "" for anything else.
func linkOf(files safepath.Root, path string) string {
	var target string
	err := files.In(path, func(dir int, name string) (err error) {
		target, err = os.Readlink(filepath.Join(safepath.Self(dir), name))
		return err
	})
	if m := dockerLog.FindStringSubmatch(target); err != nil || m == nil || m[1] != m[2] {
		return ""
	}
	return target
}
