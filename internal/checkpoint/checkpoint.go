// Package checkpoint is how the agent keeps on disk what must survive it. There are two kinds.
//
// Durable: Write, WriteAll and Remove return when what they did is not lost in a power cut.
// Warm: WriteWarm, WarmFile, WarmTable and WarmLog survive the end of the agent, however it ends,
// but perhaps not a power cut, which ends the containers that they tell of too. The last three are
// written behind the owner, at most once a second. No kind leaves a file that is half of the old
// content and half of the new: a reader sees one or the other, and what a power cut has torn is set
// aside.
//
// Owns: how such files are written, what becomes of one that cannot be read, the words for both.
// Reads: the files, once, at the start.
// Never: decides what is kept.
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

// AsideSuffix is what is appended to the name of a file that cannot be read.
const AsideSuffix = ".corrupt"

// What earlier versions appended to the names of files that they set aside, or did not finish.
var (
	oldAside      = []string{".bad", ".unusable"}
	oldUnfinished = []string{".tmp", ".new", ".next"}
)

// Content is what a file is to hold.
type Content struct {
	Path  string
	Mode  fs.FileMode
	Bytes []byte
}

// Write replaces the file in one step, and is durable: it returns when the new content is not lost
// in a power cut. The folder must exist. The error names the file, the cause and the fix.
func Write(path string, mode fs.FileMode, content []byte) error {
	return WriteAll(Content{path, mode, content})
}

// WriteAll is Write for files that belong together: if one cannot be written, none is replaced. An
// agent that is killed may have replaced the first ones.
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

// WriteWarm is Write for what may be lost in a power cut: it does not wait for the disk.
func WriteWarm(path string, mode fs.FileMode, content []byte) error {
	if err := stage(Content{path, mode, content}, func(*os.File) error { return nil }); err != nil {
		return err
	}
	return publish(path)
}

// stage writes the content beside its path. A file has one writer at a time.
func stage(c Content, sync func(*os.File) error) error {
	if _, err := allow(c.Path, 0); err != nil {
		return failed("write", c.Path, err)
	}
	temp := unfinished(c.Path) // that of an agent that was killed is overwritten
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

// publish gives the file that was staged the name. A folder that has it, which no file replaces, is
// set aside.
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

// unfinished is the name of the file that replaces the one at path.
func unfinished(path string) string {
	dir, name := filepath.Split(path)
	return dir + "." + name + ".tmp"
}

// Remove removes the files durably. One that is not there is no error; its folder must be.
func Remove(paths ...string) error {
	var errs []error
	inFolder := map[string]string{}
	for _, path := range paths {
		_, err := allow(path, 0)
		if err == nil {
			err = os.RemoveAll(path) // a folder may be in its place
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

// RemoveAll removes the file and all that was set aside or left of it, by earlier versions too.
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

// Read has decode read the file, if there is one. A file that it cannot read is set aside, and the
// error says so: the owner goes on without it. what names the content: "verdicts of probes".
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

// UnknownVersion is the error of a file in a form that this version does not know.
func UnknownVersion(is, known int) error {
	return fmt.Errorf("version %d is not known, %d is", is, known)
}

// SetAside moves a file that cannot be read out of the way, for somebody to look at, and returns
// its new path. An earlier one is lost.
func SetAside(path string) (aside string, err error) {
	aside = path + AsideSuffix
	// What is set aside may be a folder, and so may what was set aside before.
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

// IsAside reports whether the name is that of a file that was set aside, by this version or before.
func IsAside(name string) bool {
	return slices.ContainsFunc(append(oldAside, AsideSuffix), func(suffix string) bool {
		return strings.HasSuffix(name, suffix)
	})
}

// fixes are what helps against the errors of disks.
var fixes = map[unix.Errno]string{
	unix.ENOSPC: "free space on its file system",
	unix.EDQUOT: "raise the quota, or free space on its file system",
	unix.EROFS:  "make its file system writable",
	unix.EACCES: "let the agent write there",
	unix.EPERM:  "let the agent write there",
	unix.EIO:    "look at the disk; the kernel's log says more",
}

// failed returns the error of an operation on a file: the file, the cause and, where one is known,
// the fix.
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

// cause takes the names of files and system calls off an error.
func cause(err error) error {
	if errno := errnoOf(err); errno != 0 {
		return errno
	}
	return err
}
