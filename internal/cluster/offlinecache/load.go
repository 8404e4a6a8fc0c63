package offlinecache

import (
	"errors"

	v1 "k8s.io/api/core/v1"

	"berth/internal/checkpoint"
	"berth/internal/config"
)

// load returns the cached objects, nil if there is no pod. Records that cannot be read are logged
// once, together.
func (c *Cache) load() map[ref]cachedObject {
	if c.Objects == config.KeepNothing {
		return nil
	}
	// The writer uses its own files: it writes concurrently.
	f := newFiles(c.Dir, c.Node, c.Server)
	paths, err := f.paths()
	if err != nil {
		c.Log.Warn("Failed to read a part of the offline cache", "error", err)
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
		case err == nil && (rec.Object == nil || !c.caches(rec.Kind)): // deleted, or to be deleted
			continue
		case err == nil:
			o, err = rec.decode()
		}
		if err != nil {
			c.mu.Lock()
			c.aside[path+checkpoint.AsideSuffix] = true
			c.mu.Unlock()
			errs.add(err)
			continue
		}
		if _, ok := o.(*v1.Pod); ok {
			pods++
		}
		objects[rec.ref] = cachedObject{o, rec.CachedAt}
	}
	if foreign > 0 {
		c.Log.Warn("Ignoring cache entries of another node or cluster", "records", foreign, "node", c.Node, "server", c.Server)
	}
	if len(errs) > 0 {
		c.Log.Warn("Failed to read some entries of the offline cache", "error", errors.Join(errs...))
	}
	if pods == 0 {
		return nil
	}
	return objects
}
