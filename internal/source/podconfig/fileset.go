package podconfig

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"berth/internal/pod"
	"berth/internal/source/manifest"
)

// setKnown marks the root as read completely.
func (s *fileSource) setKnown(r *root) {
	if !r.known {
		r.known = true
		s.dirty = true
	}
}

// forget drops the files whose paths are not in current.
func (s *fileSource) forget(r *root, current map[string]struct{}) {
	for _, f := range slices.Clone(r.files) {
		if _, ok := current[f.path]; !ok {
			s.drop(r, f.path)
		}
	}
}

// dropEntry drops the manifests of an entry of a watched directory.
func (s *fileSource) dropEntry(in *interest, name string) {
	for _, r := range in.names[name] {
		s.drop(r, r.path)
	}
	for _, r := range in.roots {
		s.drop(r, filepath.Join(r.path, name))
	}
}

// drop drops a file from the root, and its persisted version if no other root has it.
func (s *fileSource) drop(r *root, path string) {
	if r.files.at(path) == nil {
		return
	}
	r.files.remove(path)
	s.dirty = true
	if !slices.ContainsFunc(s.roots, func(r *root) bool { return r.files.at(path) != nil }) {
		s.lastGood.forget(path)
	}
}

// forgetDeparted drops the persisted versions of files that were deleted while no agent ran.
func (s *fileSource) forgetDeparted() {
	var present []string
	for _, r := range s.roots {
		for _, f := range r.files {
			present = append(present, f.path)
		}
	}
	s.lastGood.forgetOthers(present)
}

func (s *fileSource) setProblem(r *root, problems ...manifest.Problem) {
	if !slices.Equal(r.problems, problems) {
		r.problems = problems
		s.dirty = true
	}
}

func (s *fileSource) problem(path string, severity manifest.Severity, message string) manifest.Problem {
	return manifest.Problem{Source: pod.FileSource, Path: path, Severity: severity, Message: message}
}

// maxFolders limits how many subdirectories a message names.
const maxFolders = 3

// unreadFolders reports the subdirectories of the root that are not read: all that are not roots
// themselves.
func (s *fileSource) unreadFolders(r *root, folders []string) []manifest.Problem {
	folders = slices.DeleteFunc(folders, func(folder string) bool {
		return slices.ContainsFunc(s.roots, func(r *root) bool { return r.path == folder })
	})
	if len(folders) == 0 {
		return nil
	}
	names := make([]string, 0, maxFolders)
	for _, folder := range folders[:min(len(folders), maxFolders)] {
		names = append(names, filepath.Base(folder)+"/")
	}
	text := strings.Join(names, ", ")
	if n := len(folders) - len(names); n > 0 {
		text += fmt.Sprintf(" and %d more", n)
	}
	return []manifest.Problem{s.problem(r.path, manifest.SeverityWarning, "folders in it are not read: "+text+"; name those that hold manifests beside it")}
}

// collect returns the complete set: root by root, files sorted by path, without duplicates of files
// in two roots.
func (s *fileSource) collect() snapshot {
	var out snapshot
	seen := map[string]struct{}{}
	for _, r := range s.roots {
		out.partial = out.partial || !r.known
		out.problems = append(out.problems, r.problems...)
		for _, f := range r.files {
			if len(s.roots) > 1 {
				if _, ok := seen[f.path]; ok {
					continue
				}
				seen[f.path] = struct{}{}
			}
			out.add(f.Decoded)
		}
	}
	return out
}
