// Package checkpoint persists the agent's state on disk. There are two kinds of files.
//
// Durable: Write, WriteAll and Remove return when their effect survives a power failure. Warm:
// WriteWarm, WarmFile, WarmTable and WarmLog survive any exit of the agent, but perhaps not a power
// failure, which also terminates the containers that they describe. The last three are written
// asynchronously, at most once a second. No file ever mixes old and new content: a reader sees one
// or the other, and what a power failure has torn is set aside.
//
// Owns: how such files are written, how unreadable files are handled, the messages for both.
// Reads: the files, once, at the start.
// Never: decides what is persisted.
package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// AsideSuffix is appended to the name of an unreadable file.
const AsideSuffix = ".corrupt"

// Suffixes of earlier versions for files that were set aside, or not finished.
var (
	oldAside      = []string{".bad", ".unusable"}
	oldUnfinished = []string{".tmp", ".new", ".next"}
)

// Content is the new content of a file.
type Content struct {
	Path  string
	Mode  fs.FileMode
	Bytes []byte
}

// Write replaces the file atomically and durably: it returns when the new content survives a power
// failure. The directory must exist. The error names the file, the cause and the remedy.
func Write(path string, mode fs.FileMode, content []byte) error {
	return WriteAll(Content{path, mode, content})
}

// WriteAll is Write for files that belong together: if one cannot be written, none is replaced. An
// agent that is killed meanwhile may have replaced the first ones.
func WriteAll(files ...Content) error {
	for i, c := range files {
		if err := stage(c, (*os.File).Sync); err != nil {
			for _, staged := range files[:i] {
				err = errors.Join(err, os.Remove(unfinished(staged.Path)))
			}
			return err
		}
	}
	for _, c := range files {
		if err := publish(c.Path); err != nil {
			return err
		}
		if err := syncFolder(c.Path); err != nil {
			return err
		}
	}
	return nil
}

// WriteWarm is Write for content that may be lost in a power failure: it does not sync the disk.
func WriteWarm(path string, mode fs.FileMode, content []byte) error {
	if err := stage(Content{path, mode, content}, func(*os.File) error { return nil }); err != nil {
		return err
	}
	return publish(path)
}

// stage writes the content to a temporary file beside path. A file has one writer at a time.
func stage(c Content, sync func(*os.File) error) error {
	if _, err := allow(c.Path, 0); err != nil {
		return failed("write", c.Path, err)
	}
	temp := unfinished(c.Path) // that of a killed agent is overwritten
	f, err := os.OpenFile(temp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return failed("write", c.Path, err)
	}
	err = f.Chmod(c.Mode)
	if err == nil {
		err = write(f, c.Path, c.Bytes)
	}
	if err == nil {
		err = sync(f)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return failed("write", c.Path, errors.Join(err, os.Remove(temp)))
	}
	return nil
}

// publish renames the staged file to path. A directory of that name, which a file cannot replace,
// is set aside.
func publish(path string) error {
	temp := unfinished(path)
	err := os.Rename(temp, path)
	if fi, stat := os.Lstat(path); err != nil && stat == nil && fi.IsDir() {
		if _, err = SetAside(path); err == nil {
			err = os.Rename(temp, path)
		}
	}
	if err != nil {
		return failed("write", path, errors.Join(err, os.Remove(temp)))
	}
	return nil
}

// unfinished returns the name of the temporary file for path.
func unfinished(path string) string {
	dir, name := filepath.Split(path)
	return dir + "." + name + ".tmp"
}

// Remove removes the files durably. A missing file is no error; its directory must exist.
func Remove(paths ...string) error {
	var errs []error
	inFolder := map[string]string{}
	for _, path := range paths {
		_, err := allow(path, 0)
		if err == nil {
			err = os.RemoveAll(path) // there may be a directory in its place
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, failed("remove", path, err))
			continue
		}
		inFolder[filepath.Dir(path)] = path
	}
	for _, path := range inFolder {
		errs = append(errs, syncFolder(path))
	}
	return errors.Join(errs...)
}

// RemoveAll removes the file and everything set aside or left of it, including by earlier versions.
func RemoveAll(path string) error {
	names := []string{path, path + AsideSuffix, unfinished(path)}
	for _, suffix := range slices.Concat(oldUnfinished, oldAside) {
		names = append(names, path+suffix)
	}
	var errs []error
	for _, name := range names {
		if err := os.RemoveAll(name); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func syncFolder(path string) error {
	d, err := os.Open(filepath.Dir(path))
	if err == nil {
		err = errors.Join(d.Sync(), d.Close())
	}
	if err != nil {
		return failed("write", path, err)
	}
	return nil
}

// Read passes the file to decode, if it exists. A file that cannot be decoded is set aside, and the
// error reports it: the owner continues without it. what names the content: "verdicts of probes".
func Read(path, what string, decode func([]byte) error) error {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = decode(b)
	}
	if err == nil {
		return nil
	}
	err = fmt.Errorf("%s from before are lost: %s: %w", what, path, cause(err))
	aside, moved := SetAside(path)
	if moved != nil {
		return fmt.Errorf("%w; %w", err, moved)
	}
	return fmt.Errorf("%w; the file is kept as %s", err, aside)
}

// UnknownVersion returns the error for a file in an unknown format version.
func UnknownVersion(is, known int) error {
	return fmt.Errorf("version %d is not known, %d is", is, known)
}

// SetAside renames an unreadable file for later inspection, and returns its new path. An earlier
// one is overwritten.
func SetAside(path string) (aside string, err error) {
	aside = path + AsideSuffix
	// The file, or one that was set aside before, may be a directory.
	for _, suffix := range append(oldAside, AsideSuffix) {
		if err := os.RemoveAll(path + suffix); err != nil {
			return "", failed("set aside", path, err)
		}
	}
	if err := os.Rename(path, aside); err != nil {
		return "", failed("set aside", path, err)
	}
	return aside, nil
}

// IsAside reports whether the name is that of a file that was set aside, by this version or an
// earlier one.
func IsAside(name string) bool {
	return slices.ContainsFunc(append(oldAside, AsideSuffix), func(suffix string) bool {
		return strings.HasSuffix(name, suffix)
	})
}

var fixes = map[unix.Errno]string{
	unix.ENOSPC: "free space on its file system",
	unix.EDQUOT: "raise the quota, or free space on its file system",
	unix.EROFS:  "make its file system writable",
	unix.EACCES: "let the agent write there",
	unix.EPERM:  "let the agent write there",
	unix.EIO:    "look at the disk; the kernel's log says more",
}

// failed returns the error of an operation on a file: the file, the cause and, if known, the
// remedy.
func failed(operation, path string, err error) error {
	if fix := fixes[errnoOf(err)]; fix != "" {
		return fmt.Errorf("%s %s: %w; %s", operation, path, cause(err), fix)
	}
	return fmt.Errorf("%s %s: %w", operation, path, cause(err))
}

func errnoOf(err error) unix.Errno {
	errno, _ := errors.AsType[unix.Errno](err)
	return errno
}

// cause strips the names of files and system calls from an error.
func cause(err error) error {
	if errno := errnoOf(err); errno != 0 {
		return errno
	}
	return err
}
