package podconfig

import (
	"cmp"
	"slices"
)

// fileList are the files of a root, in lexical order of their paths.
type fileList []listedFile

type listedFile struct {
	path string
	*file
}

func (l fileList) find(path string) (i int, found bool) {
	return slices.BinarySearchFunc(l, path, func(f listedFile, path string) int { return cmp.Compare(f.path, path) })
}

// at returns the file of this path; nil if there is none.
func (l fileList) at(path string) *file {
	if i, found := l.find(path); found {
		return l[i].file
	}
	return nil
}

// set adds the file, or replaces the one with its path.
func (l *fileList) set(path string, f *file) {
	i, found := l.find(path)
	if !found {
		*l = slices.Insert(*l, i, listedFile{path: path})
	}
	(*l)[i].file = f
}

func (l *fileList) remove(path string) {
	if i, found := l.find(path); found {
		*l = slices.Delete(*l, i, i+1)
	}
}
