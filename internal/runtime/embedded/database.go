package embedded

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// containerd keeps what it knows in databases of bbolt. With a broken one it does not start, or
// starts and cannot make a container, for ever. What was in it is lost either way, so it is set
// aside and containerd begins anew. The containers that it no longer knows are ended before, lest
// they run beside those that take their places.

// start starts containerd and returns when it serves CRI. If its databases are broken, it begins
// anew.
func (r *Runtime) start(ctx context.Context) error {
	why := checkDatabases(r.paths)
	// A database with a good head may be broken inside, which containerd finds. Once could have
	// other reasons, such as a disk that fails to read.
	for try := 1; why == nil && try <= 2; try++ {
		logged := logSize(r.paths.log())
		err := r.startOnce(ctx)
		if err == nil || ctx.Err() != nil || !panicsOnDatabase(r.paths.log(), logged) {
			return err
		}
		if try == 2 {
			why = fmt.Errorf("%w: %w", errBroken, err)
		}
	}
	if !errors.Is(why, errBroken) {
		return why
	}
	if err := r.beginAnew(ctx, why); err != nil {
		return err
	}
	if err := r.startOnce(ctx); err != nil {
		return err
	}
	r.mu.Lock()
	s := r.settings
	r.mu.Unlock()
	return r.ensureImages(ctx, s)
}

// databases are the files of containerd's databases.
func (p paths) databases() ([]string, error) {
	snapshots, err := filepath.Glob(p.home() + "/io.containerd.snapshotter.v1.*/metadata.db")
	return append(snapshots, p.metadata(), p.state()+"/io.containerd.mount-manager.v1.bolt/mounts.db"), err
}

// errBroken is the class of a database that containerd cannot use.
var errBroken = errors.New("the database is broken")

// checkDatabases returns what is wrong with containerd's databases; errBroken if containerd must
// begin anew. containerd does not run.
func checkDatabases(p paths) error {
	files, err := p.databases()
	if err != nil {
		return err
	}
	for _, file := range files {
		if err := checkDatabase(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	if _, err := os.Stat(p.metadata()); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	running, err := filepath.Glob(filepath.Join(p.runc(), podNamespace, "*"))
	kept, keptErr := p.keptPods()
	if err := errors.Join(err, keptErr); err != nil || len(running)+len(kept) == 0 {
		return err
	}
	return fmt.Errorf("%s: %w: it is gone, and there are containers", p.metadata(), errBroken)
}

// head is the head of a database: bbolt's meta page, of which there are two, the one with the
// higher TxID being in use.
type head struct {
	Magic, Version, PageSize, Flags uint32
	Root, Sequence, Freelist        uint64
	Pages, TxID                     uint64 // Pages: how many are in use
	Checksum                        uint64 // of all before it, FNV-1a
}

const (
	pageHeaderSize = 16 // what comes before the head on its page, in bytes
	headSize       = 64
	boltMagic      = 0xED0CDAED
	boltVersion    = 2
)

// checkDatabase returns errBroken if a file is no database, or has lost its end.
func checkDatabase(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	var newest head
	for _, at := range []int64{0, int64(os.Getpagesize())} { // bbolt's pages are as large as the machine's
		h, err := readMeta(io.NewSectionReader(f, at+pageHeaderSize, headSize))
		if err != nil {
			return err
		}
		if h.Magic == boltMagic && h.TxID >= newest.TxID {
			newest = h
		}
	}
	switch size := uint64(fi.Size()); {
	case newest.Magic == 0:
		return fmt.Errorf("%w: it has no valid head", errBroken)
	case size < newest.Pages*uint64(newest.PageSize):
		return fmt.Errorf("%w: it has %d bytes of %d", errBroken, size, newest.Pages*uint64(newest.PageSize))
	}
	return nil
}

// readMeta reads a head, all zero if there is none or it is not whole.
func readMeta(r io.Reader) (head, error) {
	raw := make([]byte, headSize)
	if _, err := io.ReadFull(r, raw); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return head{}, nil
	} else if err != nil {
		return head{}, err
	}
	var h head
	if _, err := binary.Decode(raw, binary.NativeEndian, &h); err != nil {
		return head{}, err
	}
	sum := fnv.New64a()
	sum.Write(raw[:headSize-8])
	if h.Magic != boltMagic || h.Version != boltVersion || h.Checksum != sum.Sum64() {
		return head{}, nil
	}
	return h, nil
}

// panicsOnDatabase reports whether containerd has logged, after the offset, that it ended because
// of what it read in a database.
func panicsOnDatabase(log string, offset int64) bool {
	f, err := os.Open(log)
	if err != nil {
		return false
	}
	defer f.Close()
	said, err := io.ReadAll(io.NewSectionReader(f, offset, 1<<20))
	if err != nil {
		return false
	}
	says := func(line string) bool { return strings.Contains(string(said), "\n"+line) }
	return (says("panic: ") || says("fatal error: ")) && says("go.etcd.io/bbolt")
}

// beginAnew ends what containerd ran, sets its databases aside, and removes all that it had.
// containerd does not run.
func (r *Runtime) beginAnew(ctx context.Context, why error) error {
	p := r.paths
	r.log.Error("containerd begins anew: all pods are ended and started again, and images are pulled again; "+
		"what was imported by hand must be imported again", "reason", why, "databasesKeptIn", p.corrupt())
	err := errors.Join(removeContainers(ctx, p), killAll(ctx, p), removeAttachments(ctx, p), unmountBelow(p.home(), p.state()))
	if err != nil {
		return fmt.Errorf("%w; to begin anew: %w", why, err)
	}
	files, err := p.databases()
	if err != nil {
		return err
	}
	errs := []error{os.RemoveAll(p.corrupt()), os.MkdirAll(p.corrupt(), 0o700)}
	for _, file := range files {
		// Named after its folder: "io.containerd.metadata.v1.bolt-meta.db". It may be on another
		// file system.
		errs = append(errs, copyFile(file, filepath.Join(p.corrupt(), filepath.Base(filepath.Dir(file))+"-"+filepath.Base(file))))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%w; to begin anew: %w", why, err)
	}
	gone := []string{p.state(), p.runc(), p.shimSockets(), p.addresses()}
	// The broken database goes last: as long as it is there, what was cut off here is done again.
	last := filepath.Dir(p.metadata())
	err = eachEntry(p.home(), func(path string) {
		if path != last {
			gone = append(gone, path)
		}
	})
	for _, dir := range gone {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	if err != nil {
		return fmt.Errorf("%w; to begin anew: %w", why, err)
	}
	return os.RemoveAll(last)
}

// copyFile copies a file; one that is not there is no error.
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
