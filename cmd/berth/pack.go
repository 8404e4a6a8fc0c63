package main

import (
	"archive/tar"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
)

// pack writes the file or folder as an archive, in which it has the name. Links are kept as links,
// but for one that is asked for by its name. What an archive cannot hold is left out with a
// warning.
func pack(w io.Writer, from, name string, warnings io.Writer) error {
	from, err := filepath.EvalSymlinks(from)
	if err != nil {
		return err
	}
	archive := tar.NewWriter(w)
	err = filepath.WalkDir(from, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		below, err := filepath.Rel(from, file)
		if err != nil {
			return err
		}
		if d.Type()&fs.ModeSocket != 0 {
			_, err := fmt.Fprintf(warnings, "warning: skipping socket: %q\n", file)
			return err
		}
		return packFile(archive, file, path.Join(name, filepath.ToSlash(below)))
	})
	if err != nil {
		return err
	}
	return archive.Close()
}

func packFile(archive *tar.Writer, file, name string) error {
	info, err := os.Lstat(file)
	if err != nil {
		return err
	}
	link := ""
	if info.Mode()&fs.ModeSymlink != 0 {
		if link, err = os.Readlink(file); err != nil {
			return err
		}
	}
	h, err := tar.FileInfoHeader(info, link)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	h.Name = name
	if !info.Mode().IsRegular() {
		return archive.WriteHeader(h)
	}
	content, err := os.Open(file)
	if err != nil {
		return err
	}
	defer content.Close()
	if err := archive.WriteHeader(h); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	// A file that grows meanwhile is taken as long as it was.
	if _, err := io.Copy(archive, io.LimitReader(content, h.Size)); err != nil {
		return err
	}
	if err := archive.Flush(); err != nil {
		return fmt.Errorf("%s became shorter while it was copied: %w", file, err)
	}
	return nil
}
