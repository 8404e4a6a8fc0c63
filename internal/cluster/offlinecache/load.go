package offlinecache

import (
	"errors"

	v1 "k8s.io/api/core/v1"

	"berth/internal/checkpoint"
	"berth/internal/config"
)

// load returns the cached objects, nil if there is no pod. Records that cannot be read are logged
// once, together.
func (k *Keeper) load() map[ref]loaned {
	if k.Keep == config.KeepNothing {
		return nil
	}
	// The writer uses its own files: it writes concurrently.
	f := newFiles(k.Dir, k.Node, k.Server)
	paths, err := f.paths()
	if err != nil {
		k.Log.Warn("not all that was kept of the API server is read", "error", err)
	}
	lent, pods, foreign := map[ref]loaned{}, 0, 0
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
		case err == nil && (rec.Object == nil || !k.keeps(rec.Kind)): // deleted, or to be deleted
			continue
		case err == nil:
			o, err = rec.decode()
		}
		if err != nil {
			k.mu.Lock()
			k.aside[path+checkpoint.AsideSuffix] = true
			k.mu.Unlock()
			errs.add(err)
			continue
		}
		if _, ok := o.(*v1.Pod); ok {
			pods++
		}
		lent[rec.ref] = loaned{o, rec.Kept}
	}
	if foreign > 0 {
		k.Log.Warn("what was kept for another node or another cluster is not used", "records", foreign, "node", k.Node, "server", k.Server)
	}
	if len(errs) > 0 {
		k.Log.Warn("not all that was kept of the API server can be read", "error", errors.Join(errs...))
	}
	if pods == 0 {
		return nil
	}
	return lent
}
