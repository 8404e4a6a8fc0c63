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

// completeName marks a directory that was unpacked, verified and synced to disk.
const completeName = ".complete"

// unpackPrefix is the name prefix of directories with an unpacking in progress or interrupted.
const unpackPrefix = ".unpack-"

// unpacked reports whether the bundle is unpacked. It checks only the marker: the content was
// verified when it was written.
func unpacked(bundles, hash string) bool {
	marker, err := os.ReadFile(filepath.Join(bundles, folderName(hash), completeName))
	return err == nil && string(marker) == hash
}

// ensureUnpacked unpacks a bundle below bundles in a child process, unless it is unpacked already:
// that of the file, or the embedded one with the hash. fresh reports whether it was unpacked now.
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

// unpack writes the bundle to its directory below bundles. The directory appears complete and
// verified or not at all: a file that differs from the manifest, or a manifest that differs from
// the hash, is an error that leaves nothing behind.
func unpack(blob io.Reader, bundles, hash string) (err error) {
	if err := os.MkdirAll(bundles, 0o755); err != nil {
		return err
	}
	// One at a time: the child of a killed agent continues, and must not remove the directory of
	// the next agent.
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
	// Only an incomplete directory of that name can exist here.
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	return os.Rename(dir, to)
}

// lockFolder acquires the exclusive lock on a directory, which is released when the file is closed.
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

// syncFilesystem syncs the directory's file system: a rename must not become durable before the
// renamed files.
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
	// The mode is set after creation, where the umask would restrict it.
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

// link atomically points the stable link at the bundle's directory, so that runc is always
// available.
func link(p paths, hash string) error {
	target := folderName(hash)
	if old, err := os.Readlink(p.current); err == nil && old == target {
		return nil
	}
	next := p.current + ".next"
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(target, next); err != nil {
		return err
	}
	return os.Rename(next, p.current)
}

// removeOld removes bundles that are neither current nor in use, and remainders of interrupted
// unpacking.
func removeOld(p paths, proc string) (removed []string, err error) {
	if _, err := os.Stat(p.bundles); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	current, err := os.Readlink(p.current)
	if err != nil {
		return nil, err
	}
	return removeOthers(p.bundles, current, proc)
}

// removeOthers removes bundle directories that are neither current nor in use, and remainders of
// interrupted unpacking. Other entries are retained.
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
