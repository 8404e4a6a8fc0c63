package certs

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// stamp identifies a version of a file: it changes if the file is replaced by a rename, a link
// target changes, or the file is written in place.
type stamp struct {
	dev, ino uint64
	size     int64
	written  unix.Timespec
}

func stampOf(path string) (stamp, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return stamp{}, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return stamp{dev: st.Dev, ino: st.Ino, size: st.Size, written: st.Mtim}, nil
}

// maxFile limits the size of PEM files, in bytes.
const maxFile = 1 << 20

func readPEM(path string) (_ []byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxFile {
		return nil, fmt.Errorf("%s: larger than %d bytes, which no PEM file needs to be", path, maxFile)
	}
	return b, nil
}
