package offlinecache

import (
	"errors"

	v1 "k8s.io/api/core/v1"

	"berth/internal/checkpoint"
	"berth/internal/config"
)

// load returns the cached objects, nil if there is no pod. Records that cannot be read are logged
// once, together.
func (s *entries) load() map[ref]cachedObject {
	if s.objects == config.KeepNothing {
		return nil
	}
	// The writer uses its own files: it writes concurrently.
	f := newFiles(s.files.dir, s.files.node, s.files.server)
	paths, err := f.paths()
	if err != nil {
		s.log.Warn("Failed to read a part of the offline cache", "error", err)
	}
	objects, pods, foreign := map[ref]cachedObject{}, 0, 0
	var errs causes
	for _, path := range paths {
		if !isRecord(path) {
			continue
		}
		rec, err := f.read(path)
		var o any
		switch {
		case errors.Is(err, errForeign):
			foreign++
			continue
		case err == nil && (rec.Object == nil || !s.caches(rec.Kind)): // deleted, or to be deleted
			continue
		case err == nil:
			o, err = rec.decode()
		}
		if err != nil {
			s.mu.Lock()
			s.aside[path+checkpoint.AsideSuffix] = true
			s.mu.Unlock()
			errs.add(err)
			continue
		}
		if _, ok := o.(*v1.Pod); ok {
			pods++
		}
		objects[rec.ref()] = cachedObject{o, rec.CachedAt}
	}
	if foreign > 0 {
		s.log.Warn("Ignoring cache entries of another node or cluster", "records", foreign, "node", f.node, "server", f.server)
	}
	if len(errs) > 0 {
		s.log.Warn("Failed to read some entries of the offline cache", "error", errors.Join(errs...))
	}
	if pods == 0 {
		return nil
	}
	return objects
}
