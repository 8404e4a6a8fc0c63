package podconfig

import (
	"cmp"
	"slices"
)

// fileList holds the files of a root, sorted by path.
type fileList []listedFile

type listedFile struct {
	path string
	*file
}

func (l fileList) find(path string) (i int, found bool) {
	return slices.BinarySearchFunc(l, path, func(f listedFile, path string) int { return cmp.Compare(f.path, path) })
}

// at returns the file with this path, or nil.
func (l fileList) at(path string) *file {
	if i, found := l.find(path); found {
		return l[i].file
	}
	return nil
}

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
