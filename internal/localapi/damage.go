package localapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	"berth/internal/health"
	"berth/internal/localapi/kinds"
	"berth/internal/localapi/store"
)

// ErrDamaged is the class of errors that report damage to the object file while it was in use.
var ErrDamaged = store.ErrDamaged

func storeConfig(rootDir string, log *slog.Logger) store.Config {
	return store.Config{
		Path: objectsFile(rootDir), Copy: true, Check: checkObject,
		Warn: func(err error) { log.Warn("A file of the local API was damaged", "err", err) },
	}
}

// checkObject returns the reason why a stored object is unusable, nil if it is usable.
func checkObject(key store.Key, value []byte) error {
	o, err := kinds.Decode(value, 1)
	if err != nil {
		return err
	}
	k := kinds.Of(o)
	if k == nil || k.Stored != key.Resource || o.GetNamespace() != key.Namespace || o.GetName() != key.Name {
		return fmt.Errorf("its content is %s/%s of %s", o.GetNamespace(), o.GetName(), o.GetObjectKind().GroupVersionKind())
	}
	return nil
}

// objectErrors records objects that cannot be decoded.
type objectErrors struct {
	log *slog.Logger

	mu      sync.Mutex
	skipped map[string]error // guarded by mu; objects that cannot be decoded
}

// maxSkipped is the maximum number of undecodable objects that are recorded.
const maxSkipped = 1000

// record records an object that lists omit, and logs it once.
func (o *objectErrors) record(key store.Key, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.skipped[key.String()] != nil || len(o.skipped) >= maxSkipped {
		return
	}
	if o.skipped == nil {
		o.skipped = map[string]error{}
	}
	o.skipped[key.String()] = err
	o.log.Error("An object cannot be decoded, and lists are without it; the next start of the agent recovers it from its copy", "object", key.String(), "err", err)
}

// reportRecovery logs how Open recovered a damaged file, and calls notify.
func (o *objectErrors) reportRecovery(s *store.Store, notify func(*store.Recovery)) {
	r, now := s.Recovery()
	if !now {
		return
	}
	o.log.Error("The objects of the local API were damaged, and are recovered", "recovery", r.String(), "kept", r.Aside)
	for _, l := range r.Lost {
		o.log.Error("An object of the local API is lost", "object", l.Key, "err", l.Why)
	}
	for _, name := range r.Older {
		o.log.Warn("An object of the local API may be an older version, or may have been deleted", "object", name)
	}
	if notify != nil {
		notify(r)
	}
}

// health reports undecodable objects, and a recovery for as long as the damaged file exists.
func (o *objectErrors) health(s *store.Store) error {
	o.mu.Lock()
	names := slices.Sorted(maps.Keys(o.skipped))
	o.mu.Unlock()
	var errs []error
	if len(names) > 0 {
		errs = append(errs, fmt.Errorf("%d objects cannot be decoded, and lists are without them (start the agent again, which recovers them from their copy): %s", len(names), strings.Join(names, ", ")))
	}
	if r, _ := s.Recovery(); r != nil && r.Aside != "" {
		if _, err := os.Lstat(r.Aside); err == nil {
			errs = append(errs, health.Since(fmt.Errorf("%s; the damaged file is kept as %s (remove it when you no longer need it)", r, r.Aside), r.Time))
		}
	}
	return errors.Join(errs...)
}

// awaitDamage returns when the object file becomes unusable.
func (s *Server) awaitDamage(ctx context.Context) error {
	select {
	case <-s.store.Damaged():
		return s.store.Damage()
	case <-ctx.Done():
		return nil
	}
}
