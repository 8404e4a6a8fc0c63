package dra

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/internal/pod"
	"berth/internal/record/journal"
)

// EventReason is the reason of the event for a pod for which Prepare failed. EventMessage is the
// prefix of its message; Prepare's error follows.
const (
	EventReason  = "FailedPrepareDynamicResources"
	EventMessage = "Failed to prepare dynamic resources: "
)

// Prepare has drivers prepare all claims of the pod. It must succeed before the pod's sandbox is
// created. Claims that this agent has prepared already are skipped. A driver call takes at most 45
// s. On an error the inboxes of Subscribe get the pod when a retry may succeed: when the driver has
// connected, when the claim is released, and after a back-off of 1 s, doubling to 1 min. Pods that
// share a claim are prepared one after the other.
func (m *Manager) Prepare(ctx context.Context, p *v1.Pod) error {
	claims, err := podClaimsOf(p)
	if err == nil && len(claims) == 0 {
		return nil
	}
	began, causes := time.Now(), []string(nil)
	var made calls
	if err == nil {
		made, causes, err = m.prepare(ctx, p, claims)
	}
	if err != nil {
		err = fmt.Errorf("prepare dynamic resources: %w", err)
	}
	m.metrics.operated(prepareOperation, time.Since(began), err)
	why := describe(claims, made)
	switch {
	case err == nil:
		m.waits.remove(p.UID)
	case ctx.Err() == nil:
		due := m.waits.failed(p.UID, causes, time.Now())
		why += "; next try at " + due.UTC().Format(time.RFC3339)
		wakeUp(m.wake)
	}
	m.record(journal.Subject{UID: p.UID, Namespace: p.Namespace, Name: p.Name}, journal.Entry{
		Decision: "prepare claims", Why: why, Took: time.Since(began), Error: journal.Error(err),
	})
	return err
}

// prepare returns the driver calls that were due, and the causes that may make a retry succeed.
func (m *Manager) prepare(ctx context.Context, p *v1.Pod, claims []podClaim) (made calls, causes []string, err error) {
	wanted, causes, err := m.read(ctx, p, claims)
	if err != nil {
		return nil, causes, err
	}
	var keys []types.NamespacedName
	for _, a := range wanted {
		keys = append(keys, a.key)
	}
	unlock, err := m.inflight.lock(ctx, keys)
	if err != nil {
		return nil, causes, err
	}
	defer unlock()
	made, err = m.claimCache.addReferences(p.UID, wanted)
	if err == nil {
		err = m.claimCache.save() // before a driver prepares anything that must be unprepared
	}
	if err != nil {
		return nil, causes, err
	}
	for _, driver := range slices.Sorted(maps.Keys(made)) {
		devices, err := m.drivers.prepare(ctx, driver, made[driver])
		m.claimCache.setPrepared(driver, devices)
		if err != nil {
			return made, causes, errors.Join(err, m.claimCache.save())
		}
	}
	return made, causes, m.claimCache.save()
}

// read reads the claims and validates that the pod may use them. It changes nothing.
func (m *Manager) read(ctx context.Context, p *v1.Pod, claims []podClaim) (wanted []allocated, causes []string, err error) {
	if m.api == nil {
		return nil, nil, errors.New("there is no API server that has claims")
	}
	seen := map[types.NamespacedName]bool{}
	for _, w := range claims {
		key := types.NamespacedName{Namespace: p.Namespace, Name: w.Claim}
		c, err := m.api.GetResourceClaim(ctx, key.Namespace, key.Name)
		if err != nil {
			return nil, causes, err
		}
		if err := checkClaim(p, w, c); err != nil {
			return nil, causes, err
		}
		if seen[key] {
			continue
		}
		seen[key] = true
		a := allocatedOf(c)
		causes = append(causes, claimCause(key))
		for _, driver := range a.drivers {
			causes = append(causes, driverCause(driver))
		}
		for _, driver := range a.drivers {
			if _, err := m.drivers.choose(driver); err != nil {
				return nil, causes, err
			}
		}
		wanted = append(wanted, a)
	}
	return wanted, causes, nil
}

// Unprepare has drivers unprepare the claims of the pod that no other pod uses. Call it when all
// containers of the pod have exited, and retry until it succeeds: once the pod is deleted, the
// claims may be allocated to other pods. A driver call takes at most 45 s. On an error the inboxes
// of Subscribe get the pod as with Prepare. It is cheap for a pod without claims.
func (m *Manager) Unprepare(ctx context.Context, uid pod.UID) error {
	causes, err := m.release(ctx, uid)
	switch {
	case err == nil:
		m.waits.remove(uid)
	case ctx.Err() == nil:
		m.waits.failed(uid, causes, time.Now())
		wakeUp(m.wake)
	}
	return err
}

// release implements Unprepare. It also returns the causes that may make a retry succeed.
func (m *Manager) release(ctx context.Context, uid pod.UID) (causes []string, err error) {
	held := m.claimCache.claimsOf(uid)
	if len(held) == 0 {
		return nil, m.claimCache.save() // an earlier save may have failed
	}
	began := time.Now()
	causes, err = m.unprepare(ctx, uid, held)
	if err != nil {
		err = fmt.Errorf("unprepare dynamic resources: %w", err)
	}
	m.metrics.operated(unprepareOperation, time.Since(began), err)
	if subject, known := m.journal.SubjectOf(uid); known {
		m.record(subject, journal.Entry{Decision: "unprepare claims", Why: join(held), Took: time.Since(began), Error: journal.Error(err)})
	}
	return causes, err
}

func (m *Manager) unprepare(ctx context.Context, uid pod.UID, held []types.NamespacedName) (causes []string, err error) {
	unlock, err := m.inflight.lock(ctx, held)
	if err != nil {
		return nil, err
	}
	defer unlock()
	todo, last := m.claimCache.removeReferences(uid, held)
	failed := map[types.NamespacedName]bool{}
	var errs []error
	for _, driver := range slices.Sorted(maps.Keys(todo)) {
		if err := m.drivers.unprepare(ctx, driver, todo[driver]); err != nil {
			errs, causes = append(errs, err), append(causes, driverCause(driver))
			for _, r := range todo[driver] {
				failed[r.key] = true
			}
		}
	}
	free := slices.DeleteFunc(last, func(key types.NamespacedName) bool { return failed[key] })
	m.claimCache.remove(free)
	err = errors.Join(append(errs, m.claimCache.save())...)
	for _, key := range free {
		m.waits.resolved(claimCause(key))
	}
	return causes, err
}

func (m *Manager) record(s journal.Subject, e journal.Entry) {
	e.Time, e.Subject, e.Component = time.Now(), s, "claims"
	m.journal.Record(e)
}

func describe(claims []podClaim, made calls) string {
	var names []string
	for _, c := range claims {
		names = append(names, c.Claim)
	}
	if len(made) == 0 {
		return strings.Join(names, ", ")
	}
	return strings.Join(names, ", ") + " by " + strings.Join(slices.Sorted(maps.Keys(made)), ", ")
}

func join(keys []types.NamespacedName) string {
	var out []string
	for _, key := range keys {
		out = append(out, key.String())
	}
	return strings.Join(out, ", ")
}
