package machine

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
)

const (
	// maxFile is the maximum size of a file, in bytes: lists of CPUs may be longer than a page.
	maxFile = 64 << 10
	// maxID is the highest ID of a CPU or node. Kernels support at most 8192 CPUs.
	maxID = 1<<16 - 1
)

type files struct{ root fs.FS }

// missing reports whether the error means that a file does not exist.
func missing(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// text returns the content of a file without surrounding white space.
func (f files) text(name string) (string, error) {
	file, err := f.root.Open(name)
	if err != nil {
		return "", err // names the file
	}
	defer file.Close()
	b, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	if len(b) > maxFile {
		return "", fmt.Errorf("%s: is longer than %d bytes", name, maxFile)
	}
	return strings.TrimSpace(string(b)), nil
}

// number returns the content of a file that is a number.
func (f files) number(name string) (int, error) {
	s, err := f.text(name)
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		return 0, fmt.Errorf("%s: %q is no number", name, s)
	}
	return n, nil
}

// list returns the content of a file that is a list of numbers, "0-3,8", ascending (cpuset(7),
// "List format"). It does not support steps, which the kernel does not write.
func (f files) list(name string) ([]int, error) {
	s, err := f.text(name)
	if err != nil {
		return nil, err
	}
	ids, err := parseList(s)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return ids, nil
}

// parseList differs from cpuset.Parse in that it rejects numbers above maxID before it expands
// ranges.
func parseList(s string) ([]int, error) {
	if s == "" {
		return nil, nil
	}
	var ids []int
	for part := range strings.SplitSeq(s, ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		first, err := strconv.ParseUint(from, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("%q is no list of numbers", s)
		}
		last, err := strconv.ParseUint(to, 10, 32)
		if err != nil || last < first {
			return nil, fmt.Errorf("%q is no list of numbers", s)
		}
		if last > maxID {
			return nil, fmt.Errorf("%q has a number above %d", s, maxID)
		}
		for id := first; id <= last; id++ {
			ids = append(ids, int(id))
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// memTotal returns MemTotal of a meminfo file of the machine or of a node, in bytes.
func (f files) memTotal(name string) (int64, error) {
	s, err := f.text(name)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(s) {
		_, value, ok := strings.Cut(line, "MemTotal:")
		if !ok {
			continue
		}
		kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
		if err != nil || kib < 0 || kib > math.MaxInt64>>10 {
			return 0, fmt.Errorf("%s: MemTotal %q is no number of kB", name, strings.TrimSpace(value))
		}
		return kib << 10, nil
	}
	return 0, fmt.Errorf("%s: has no MemTotal", name)
}

// hugePages returns the number of preallocated hugepages, by page size in bytes; nil if the kernel
// does not support them.
func (f files) hugePages(folder string) (map[int64]int64, error) {
	entries, err := fs.ReadDir(f.root, folder)
	if missing(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", folder, err)
	}
	pages := map[int64]int64{}
	for _, e := range entries {
		size, ok := strings.CutPrefix(e.Name(), "hugepages-")
		if !ok {
			continue
		}
		kib, err := strconv.ParseInt(strings.TrimSuffix(size, "kB"), 10, 64)
		if err != nil || kib < 1 || kib > math.MaxInt64>>10 {
			return nil, fmt.Errorf("%s: %q names no size of a page", folder, e.Name())
		}
		n, err := f.number(path.Join(folder, e.Name(), "nr_hugepages"))
		if err != nil {
			return nil, err
		}
		pages[kib<<10] = int64(n)
	}
	return pages, nil
}
