package logs

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// stampFormat is the time format in the name of a rotated file. The kubelet's names are the same.
const stampFormat = "20060102-150405"

// Suffixes of names beside a log: of a compressed part, and of an incomplete file.
const (
	CompressedSuffix = ".gz"
	UnfinishedSuffix = ".tmp"
)

// Stamp is the time of a rotation, which orders the parts. The zero stamp precedes all others.
type Stamp struct {
	// Second is the local time, as 20060102-150405.
	Second string
	// Number distinguishes rotations within one second; the first has 0.
	Number int
}

// Compare orders stamps by time.
func (s Stamp) Compare(o Stamp) int {
	return cmp.Or(cmp.Compare(s.Second, o.Second), cmp.Compare(s.Number, o.Number))
}

// Next returns the stamp of a rotation at now that follows s, even if the clock was set back.
func (s Stamp) Next(now time.Time) Stamp {
	if second := now.Local().Format(stampFormat); second > s.Second {
		return Stamp{Second: second}
	}
	return Stamp{s.Second, s.Number + 1}
}

func (s Stamp) String() string {
	if s.Number == 0 {
		return s.Second
	}
	return fmt.Sprintf("%s-%03d", s.Second, s.Number)
}

// Part is a rotated file of a log: 0.log.20260102-150405, 0.log.20260102-150405-001 for the next
// one within that second, each with .gz once it is compressed.
type Part struct {
	Stamp      Stamp
	Compressed bool
}

// Name returns the part's file name for a log with that name.
func (p Part) Name(log string) string {
	name := log + "." + p.Stamp.String()
	if p.Compressed {
		name += CompressedSuffix
	}
	return name
}

// ParsePart parses the name of a file beside the log; false if it is not a part of it.
func ParsePart(log, name string) (Part, bool) {
	rest, ok := strings.CutPrefix(name, log+".")
	if !ok {
		return Part{}, false
	}
	var p Part
	rest, p.Compressed = strings.CutSuffix(rest, CompressedSuffix)
	p.Stamp.Second = rest[:min(len(rest), len(stampFormat))]
	if _, err := time.Parse(stampFormat, p.Stamp.Second); err != nil {
		return Part{}, false
	}
	if number := rest[len(p.Stamp.Second):]; number != "" {
		n, err := strconv.Atoi(strings.TrimPrefix(number, "-"))
		p.Stamp.Number = n
		if err != nil || n < 1 || p.Name(log) != name { // such as +1, or 1 for 001
			return Part{}, false
		}
	}
	return p, true
}

// stamps returns the stamps of the log's parts, oldest first. A compressed part appears before its
// source is removed, so that one directory listing may miss both; two equal listings are complete.
func stamps(path string) ([]Stamp, error) {
	const tries = 10
	var last []Stamp
	for try := range tries {
		entries, err := FilesOf(path).ReadDir(filepath.Dir(path))
		if err != nil {
			return nil, err
		}
		var now []Stamp
		for _, e := range entries {
			if p, ok := ParsePart(filepath.Base(path), e.Name()); ok {
				now = append(now, p.Stamp)
			}
		}
		slices.SortFunc(now, Stamp.Compare)
		now = slices.Compact(now)
		if try > 0 && slices.Equal(now, last) {
			break
		}
		last = now
	}
	return last, nil
}

// findPart returns the part that an open file has become. A rewritten part is a different file with
// the modification time of ours. It returns false if the file is none of the parts.
func findPart(path string, among []Stamp, file os.FileInfo) (Stamp, bool) {
	ours, ok := file.Sys().(*syscall.Stat_t)
	if !ok {
		return Stamp{}, false
	}
	for _, s := range slices.Backward(among) {
		for _, compressed := range []bool{false, true} {
			st, err := FilesOf(path).Lstat(partPath(path, Part{s, compressed}))
			if err != nil {
				continue
			}
			same := st.Dev == ours.Dev && st.Ino == ours.Ino
			rewritten := ours.Nlink == 0 && unix.TimespecToNsec(st.Mtim) == file.ModTime().UnixNano()
			if same || rewritten {
				return s, true
			}
		}
	}
	return Stamp{}, false
}

func partPath(path string, p Part) string {
	return filepath.Join(filepath.Dir(path), p.Name(filepath.Base(path)))
}

// Find returns nil if the log exists: its file, or a part while a rotation is in progress.
// Otherwise it returns fs.ErrNotExist, or the error of opening the file.
func Find(path string) error {
	f, err := Open(path)
	if err == nil {
		return f.Close()
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if parts, e := stamps(path); e == nil && len(parts) > 0 {
		return nil
	}
	return err
}
