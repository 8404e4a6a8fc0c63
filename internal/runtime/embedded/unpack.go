package embedded

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// completeName marks a folder that was unpacked, verified and brought to disk.
const completeName = ".complete"

// unpackPrefix begins the names of folders that are being unpacked, or were when the power went.
const unpackPrefix = ".unpack-"

// unpacked reports whether the bundle is below bundles already. It looks at names only: the content
// was verified when it was written.
func unpacked(bundles, hash string) bool {
	marker, err := os.ReadFile(filepath.Join(bundles, folderName(hash), completeName))
	return err == nil && string(marker) == hash
}

// ensureUnpacked has a child unpack a bundle below bundles, unless it is there: that of the file,
// or the one of the hash in this binary. fresh is that it was not.
func ensureUnpacked(ctx context.Context, bundles, hash, file string) (fresh bool, err error) {
	if unpacked(bundles, hash) {
		return false, nil
	}
	args := []string{childUnpack, bundles, hash}
	if file != "" {
		args = append(args, file)
	}
	if err := child(ctx, args...); err != nil {
		return false, fmt.Errorf("unpack the bundle to %s: %w", bundles, err)
	}
	return true, nil
}

// unpack writes the bundle to its folder below bundles. The folder appears complete and verified or
// not at all: a file that differs from the manifest, or a manifest that differs from the hash, is
// an error that leaves nothing behind.
func unpack(blob io.Reader, bundles, hash string) (err error) {
	if err := os.MkdirAll(bundles, 0o755); err != nil {
		return err
	}
	// One at a time: the child of an agent that was killed goes on, and must not take the folder
	// away under the next agent.
	lock, err := lockFolder(bundles)
	if err != nil {
		return err
	}
	defer lock.Close()
	if unpacked(bundles, hash) {
		return nil
	}
	dir, err := os.MkdirTemp(bundles, unpackPrefix)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	if err := extract(blob, dir, hash); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, completeName), []byte(hash), 0o644); err != nil {
		return err
	}
	if err := syncFilesystem(dir); err != nil {
		return err
	}
	to := filepath.Join(bundles, folderName(hash))
	// Only an incomplete folder of that name can be there, or we would not be here.
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	return os.Rename(dir, to)
}

// lockFolder waits for the lock on a folder, which ends with the file or the process.
func lockFolder(dir string) (*os.File, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(d.Fd()), unix.LOCK_EX)
		switch {
		case err == nil:
			return d, nil
		case !errors.Is(err, unix.EINTR):
			return nil, errors.Join(fmt.Errorf("lock %s: %w", dir, err), d.Close())
		}
	}
}

// syncFilesystem brings the folder's file system to disk: a rename must not become durable before
// what was renamed.
func syncFilesystem(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := unix.Syncfs(int(d.Fd())); err != nil {
		return fmt.Errorf("sync file system of %s: %w", dir, err)
	}
	return nil
}

func extract(blob io.Reader, dir, hash string) error {
	z, err := zstd.NewReader(blob)
	if err != nil {
		return err
	}
	defer z.Close()
	t := tar.NewReader(z)
	head, got, err := readHead(t)
	if err != nil {
		return err
	}
	if got != hash {
		return fmt.Errorf("corrupt bundle: its manifest has the hash %s, expected %s", got, hash)
	}
	m, err := parseManifest(head)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, manifestName), head, 0o644); err != nil {
		return err
	}
	for _, want := range m.Files {
		h, err := t.Next()
		if err != nil {
			return fmt.Errorf("corrupt bundle: %s: %w", want.Name, err)
		}
		if h.Name != want.Name {
			return fmt.Errorf("corrupt bundle: found %q where the manifest has %q", h.Name, want.Name)
		}
		if err := extractFile(t, dir, want); err != nil {
			return err
		}
	}
	return nil
}

func extractFile(from io.Reader, dir string, want bundledFile) (err error) {
	name := filepath.Join(dir, want.Name)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	// The mode is set apart from the creation, where the umask would narrow it.
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(f, sum), from)
	if err != nil {
		return fmt.Errorf("corrupt bundle: %s: %w", want.Name, err)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); n != want.Size || got != want.SHA256 {
		return fmt.Errorf("corrupt bundle: %s has %d bytes with the hash %s, expected %d bytes with %s", want.Name, n, got, want.Size, want.SHA256)
	}
	return f.Chmod(fs.FileMode(want.Mode).Perm())
}

// link points the stable link at the bundle's folder, in one step, so that there is no moment
// without runc.
func link(p paths, hash string) error {
	target := folderName(hash)
	if old, err := os.Readlink(p.current()); err == nil && old == target {
		return nil
	}
	next := p.current() + ".next"
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(target, next); err != nil {
		return err
	}
	return os.Rename(next, p.current())
}

// removeOld removes bundles that are neither current nor used by a process, and what an interrupted
// unpacking left behind.
func removeOld(p paths, proc string) (removed []string, err error) {
	if _, err := os.Stat(p.bundles()); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	current, err := os.Readlink(p.current())
	if err != nil {
		return nil, err
	}
	return removeOthers(p.bundles(), current, proc)
}

// removeOthers removes the folders of bundles that are neither that one nor used by a process, and
// what an interrupted unpacking left behind. What somebody else has put there stays.
func removeOthers(bundles, current, proc string) (removed []string, err error) {
	entries, err := os.ReadDir(bundles)
	if err != nil {
		return nil, err
	}
	var old []string
	for _, e := range entries {
		if e.IsDir() && e.Name() != current && (isFolderName(e.Name()) || strings.HasPrefix(e.Name(), unpackPrefix)) {
			old = append(old, e.Name())
		}
	}
	if len(old) == 0 {
		return nil, nil
	}
	used, err := foldersInUse(bundles, proc)
	if err != nil {
		return nil, err
	}
	for _, name := range old {
		if used[name] && !strings.HasPrefix(name, unpackPrefix) {
			continue
		}
		if rerr := os.RemoveAll(filepath.Join(bundles, name)); rerr != nil {
			err = errors.Join(err, rerr)
			continue
		}
		removed = append(removed, name)
	}
	return removed, err
}
