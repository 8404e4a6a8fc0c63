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
	wants, err := wantsOf(p)
	if err == nil && len(wants) == 0 {
		return nil
	}
	began, causes := time.Now(), []string(nil)
	var made calls
	if err == nil {
		made, causes, err = m.prepare(ctx, p, wants)
	}
	if err != nil {
		err = fmt.Errorf("prepare dynamic resources: %w", err)
	}
	m.metrics.operated(prepareOperation, time.Since(began), err)
	why := describe(wants, made)
	switch {
	case err == nil:
		m.waits.over(p.UID)
	case ctx.Err() == nil:
		due := m.waits.failed(p.UID, causes, time.Now())
		why += "; next try at " + due.UTC().Format(time.RFC3339)
		m.wakeUp()
	}
	m.record(journal.Subject{UID: p.UID, Namespace: p.Namespace, Name: p.Name}, journal.Entry{
		Decision: "prepare claims", Why: why, Took: time.Since(began), Error: journal.Error(err),
	})
	return err
}

// prepare returns the driver calls that were due, and the causes that may make a retry succeed.
func (m *Manager) prepare(ctx context.Context, p *v1.Pod, wants []want) (made calls, causes []string, err error) {
	wanted, causes, err := m.read(ctx, p, wants)
	if err != nil {
		return nil, causes, err
	}
	var keys []types.NamespacedName
	for _, a := range wanted {
		keys = append(keys, a.key)
	}
	land, err := m.inflight.take(ctx, keys)
	if err != nil {
		return nil, causes, err
	}
	defer land()
	made, err = m.claimCache.addReferences(p.UID, wanted)
	if err == nil {
		err = m.claimCache.save() // before a driver prepares anything that must be unprepared
	}
	if err != nil {
		return nil, causes, err
	}
	for _, driver := range slices.Sorted(maps.Keys(made)) {
		devices, err := m.prepareAt(ctx, driver, made[driver])
		m.claimCache.setPrepared(driver, devices)
		if err != nil {
			return made, causes, errors.Join(err, m.claimCache.save())
		}
	}
	return made, causes, m.claimCache.save()
}

// read reads the claims and validates that the pod may use them. It changes nothing.
func (m *Manager) read(ctx context.Context, p *v1.Pod, wants []want) (wanted []allocated, causes []string, err error) {
	if m.API == nil {
		return nil, nil, errors.New("there is no API server that has claims")
	}
	seen := map[types.NamespacedName]bool{}
	for _, w := range wants {
		key := types.NamespacedName{Namespace: p.Namespace, Name: w.Claim}
		c, err := m.API.GetResourceClaim(ctx, key.Namespace, key.Name)
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
	causes, err := m.takeBack(ctx, uid)
	switch {
	case err == nil:
		m.waits.over(uid)
	case ctx.Err() == nil:
		m.waits.failed(uid, causes, time.Now())
		m.wakeUp()
	}
	return err
}

// takeBack implements Unprepare. It also returns the causes that may make a retry succeed.
func (m *Manager) takeBack(ctx context.Context, uid pod.UID) (causes []string, err error) {
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
	if m.Journal != nil {
		if subject, known := m.Journal.SubjectOf(uid); known {
			m.record(subject, journal.Entry{Decision: "unprepare claims", Why: join(held), Took: time.Since(began), Error: journal.Error(err)})
		}
	}
	return causes, err
}

func (m *Manager) unprepare(ctx context.Context, uid pod.UID, held []types.NamespacedName) (causes []string, err error) {
	land, err := m.inflight.take(ctx, held)
	if err != nil {
		return nil, err
	}
	defer land()
	todo, last := m.claimCache.removeReferences(uid, held)
	kept := map[types.NamespacedName]bool{}
	var errs []error
	for _, driver := range slices.Sorted(maps.Keys(todo)) {
		if err := m.unprepareAt(ctx, driver, todo[driver]); err != nil {
			errs, causes = append(errs, err), append(causes, driverCause(driver))
			for _, r := range todo[driver] {
				kept[r.key] = true
			}
		}
	}
	free := slices.DeleteFunc(last, func(key types.NamespacedName) bool { return kept[key] })
	m.claimCache.remove(free)
	err = errors.Join(append(errs, m.claimCache.save())...)
	for _, key := range free {
		m.waits.happened(claimCause(key))
	}
	return causes, err
}

func (m *Manager) record(s journal.Subject, e journal.Entry) {
	if m.Journal == nil {
		return
	}
	e.Time, e.Subject, e.Component = time.Now(), s, "claims"
	m.Journal.Record(e)
}

// describe lists the claims and the called drivers.
func describe(wants []want, made calls) string {
	var claims []string
	for _, w := range wants {
		claims = append(claims, w.Claim)
	}
	if len(made) == 0 {
		return strings.Join(claims, ", ")
	}
	return strings.Join(claims, ", ") + " by " + strings.Join(slices.Sorted(maps.Keys(made)), ", ")
}

func join(keys []types.NamespacedName) string {
	var out []string
	for _, key := range keys {
		out = append(out, key.String())
	}
	return strings.Join(out, ", ")
}
