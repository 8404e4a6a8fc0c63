package embedded

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"berth/internal/boltfile"
)

// containerd stores its state in bbolt databases. With a broken one it never starts, or starts but
// cannot create containers. The content is lost in both cases, so the databases are set aside and
// containerd starts with empty ones. Unknown containers are killed first, so that they do not run
// beside their replacements. Images are restored from their content (restore.go).

// start starts containerd and returns when it serves CRI. If its databases are broken, it resets
// them.
func (r *Runtime) start(ctx context.Context) error {
	why := checkDatabases(r.paths)
	var damaged damagedImages
	if why == nil {
		damaged = r.images.findDamaged()
		reportDamagedRecords(r.paths, r.log)
		why = errors.Join(killDamagedContainers(ctx, r.paths, r.log), removeDamagedState(r.paths, r.log))
	}
	// A database with a valid header may be broken inside, which containerd detects. A single
	// failure could have other causes, such as a disk read error.
	for try := 1; why == nil && try <= 2; try++ {
		logged := logSize(r.paths.log)
		err := r.startWithImages(ctx, damaged)
		if err == nil || ctx.Err() != nil || !panicsOnDatabase(r.paths.log, logged) {
			return err
		}
		if try == 2 {
			why = fmt.Errorf("%w: %w", errBroken, err)
		}
	}
	if !errors.Is(why, errBroken) {
		return why
	}
	if err := r.resetStore(ctx, why); err != nil {
		return err
	}
	return r.startWithImages(ctx, damagedImages{})
}

// startWithImages starts containerd, removes damaged images and loads missing ones. containerd may
// also exit on a broken database during the latter.
func (r *Runtime) startWithImages(ctx context.Context, damaged damagedImages) error {
	if err := r.startOnce(ctx); err != nil {
		return err
	}
	r.mu.Lock()
	s := r.settings
	r.mu.Unlock()
	if err := r.images.removeDamaged(ctx, damaged, s.images); err != nil {
		return err
	}
	return r.ensureImages(ctx, s)
}

func databases(p paths) ([]string, error) {
	snapshots, err := filepath.Glob(p.store.dir + "/io.containerd.snapshotter.v1.*/metadata.db")
	return append(snapshots, p.store.metadata, p.state+"/io.containerd.mount-manager.v1.bolt/mounts.db"), err
}

// errBroken matches errors of databases that containerd cannot use.
var errBroken = errors.New("the database is broken")

// checkDatabases validates containerd's databases; errBroken means that they must be reset.
// containerd must not be running.
func checkDatabases(p paths) error {
	files, err := databases(p)
	if err != nil {
		return err
	}
	var wrong error
	for _, file := range files {
		switch err := checkDatabase(file); {
		case err == nil || errors.Is(err, fs.ErrNotExist):
		case wrong == nil:
			wrong = fmt.Errorf("%s: %w", file, err)
		default:
			wrong = fmt.Errorf("%w; %s: %w", wrong, file, err)
		}
	}
	if wrong != nil {
		return wrong
	}
	if _, err := os.Stat(p.store.metadata); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	running, err := filepath.Glob(filepath.Join(p.runc, podNamespace, "*"))
	podshims, podshimsErr := shmDirs(p)
	switch err := errors.Join(err, podshimsErr); {
	case err != nil:
		return err
	case len(running)+len(podshims) > 0:
		return fmt.Errorf("%s: %w: it is gone, and there are containers", p.store.metadata, errBroken)
	case exists(p.imageList) && !exists(p.store.salvage): // otherwise containerd was reset already
		return fmt.Errorf("%s: %w: it is gone, and there were images", p.store.metadata, errBroken)
	}
	return nil
}

// checkDatabase returns errBroken if bbolt cannot use the file.
func checkDatabase(file string) error {
	fi, err := os.Stat(file)
	if err != nil {
		return err
	}
	if !fi.Mode().IsRegular() {
		return fmt.Errorf("%w: it is not a regular file", errBroken)
	}
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	b, err := boltfile.Open(f, fi.Size())
	if err != nil {
		return fmt.Errorf("%w: %w", errBroken, err)
	}
	if problems := b.Walk(func(boltfile.Entry) {}); len(problems) > 0 {
		return fmt.Errorf("%w: %w", errBroken, problems[0])
	}
	return nil
}

// panicsOnDatabase reports whether containerd has logged, after the offset, a crash in bbolt.
func panicsOnDatabase(log string, offset int64) bool {
	f, err := os.Open(log)
	if err != nil {
		return false
	}
	defer f.Close()
	text, err := io.ReadAll(io.NewSectionReader(f, offset, 1<<20))
	if err != nil {
		return false
	}
	contains := func(line string) bool { return strings.Contains(string(text), "\n"+line) }
	return (contains("panic: ") || contains("fatal error: ")) && contains("go.etcd.io/bbolt")
}

// resetStore kills containerd's containers, sets its databases aside, and deletes its other state.
// containerd must not be running.
func (r *Runtime) resetStore(ctx context.Context, why error) error {
	p := r.paths
	r.log.Error("Starting containerd with a new database: all pods are restarted, and images are restored from the content store",
		"reason", why, "databasesKeptIn", p.store.corrupt)
	err := errors.Join(removeContainers(ctx, p), killAll(ctx, p), removeAttachments(ctx, p), unmountBelow(p.store.dir, p.state))
	if err != nil {
		return fmt.Errorf("%w; to start with a new database: %w", why, err)
	}
	files, err := databases(p)
	if err != nil {
		return err
	}
	errs := []error{os.RemoveAll(p.store.corrupt), os.MkdirAll(p.store.corrupt, 0o700)}
	for _, file := range files {
		// Named after its directory: "io.containerd.metadata.v1.bolt-meta.db". It may be on another
		// file system.
		to := filepath.Join(p.store.corrupt, filepath.Base(filepath.Dir(file))+"-"+filepath.Base(file))
		if err := copyFile(file, to); err != nil { // a directory, or a disk read error
			r.log.Warn("A broken database of containerd is not kept", "file", file, "err", err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%w; to start with a new database: %w", why, err)
	}
	// The broken database is deleted last: while it exists, an interrupted reset is repeated.
	last := filepath.Dir(p.store.metadata)
	removeBut := func(stays ...string) error {
		isExited := []string{p.state, p.runc, p.shimSockets, p.network.leases}
		err := eachEntry(p.store.dir, func(path string) {
			if !slices.Contains(stays, path) {
				isExited = append(isExited, path)
			}
		})
		for _, dir := range isExited {
			err = errors.Join(err, os.RemoveAll(dir))
		}
		return err
	}
	// Content is deleted after the rest, which may be what has filled the disk.
	err = removeBut(last, p.store.salvage, p.store.content)
	if err == nil {
		err = r.images.salvage(why)
	}
	if err == nil {
		err = removeBut(last, p.store.salvage)
	}
	if err != nil {
		return fmt.Errorf("%w; to start with a new database: %w", why, err)
	}
	return os.RemoveAll(last)
}

// copyFile copies a file; a missing one is not an error.
func copyFile(from, to string) (err error) {
	in, err := os.Open(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
