package differences

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	mathrand "math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
)

// Config says what Run does.
type Config struct {
	// A is the server that is right, B the one that is compared with it.
	A, B Server
	// Seed makes the sequences; Sequences is how many.
	Seed      uint64
	Sequences int
	// Known are differences that are no news.
	Known []Known
}

// Known is a way of differing that is known. Where answers differ in nothing else, a sequence goes
// on.
type Known struct {
	// Step is looked for in the method and the path of a step, Fault in what is said of one place
	// of its answers: the place, what A has there and what B has, on a line each.
	Step, Fault *regexp.Regexp
	Reason      string
}

// Difference is one way in which the servers differ, by the shortest sequence that shows it.
type Difference struct {
	Steps  []Step // all but the last are answered alike
	Faults []string
	Count  int // sequences that showed it

	signature string
}

// String is the difference as one reads it.
func (d Difference) String() string {
	var out strings.Builder
	fmt.Fprintf(&out, "differs in %d sequences:\n", d.Count)
	for _, s := range d.Steps {
		fmt.Fprintf(&out, "%s\n", s)
	}
	for _, f := range d.Faults {
		fmt.Fprintf(&out, "  %s\n", f)
	}
	return out.String()
}

// Report is what Run has found.
type Report struct {
	Requests    int // to each server
	Differences []Difference
	// Known says how often a difference was seen that is known, by its reason. A reason that is not
	// in it was not seen.
	Known map[string]int
}

const (
	workers = 4
	tries   = 120 // to make a difference shorter
)

// runner runs sequences.
type runner struct {
	Config
	id       string // of this run, in all names
	names    atomic.Int64
	requests atomic.Int64

	mu    sync.Mutex
	found map[string]*Difference // by signature; guarded by mu
	seen  map[string]int         // reasons of Known; guarded by mu
}

// Run compares two servers. It returns an error if one of them cannot be reached.
func Run(ctx context.Context, c Config) (Report, error) {
	if len(c.A.Namespace) != len(c.B.Namespace) {
		return Report{}, fmt.Errorf("the namespaces %q and %q are not of the same length, which messages would show", c.A.Namespace, c.B.Namespace)
	}
	all, err := corpus()
	if err != nil {
		return Report{}, err
	}
	r := &runner{Config: c, id: strings.ToLower(rand.Text()[:5]), found: map[string]*Difference{}, seen: map[string]int{}}
	group, running := errgroup.WithContext(ctx)
	group.SetLimit(workers)
	for i := range c.Sequences {
		group.Go(func() error {
			return r.judge(running, sequence(mathrand.New(mathrand.NewPCG(c.Seed, uint64(i))), all))
		})
	}
	if err := group.Wait(); err != nil {
		return Report{}, err
	}
	return r.report(ctx)
}

// judge runs a sequence and notes how it differs.
func (r *runner) judge(ctx context.Context, steps []Step) error {
	d, err := r.run(ctx, steps)
	if err != nil || d == nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if same := r.found[d.signature]; same != nil {
		same.Count++
		return nil
	}
	r.found[d.signature] = d
	return nil
}

// report makes what was found short.
func (r *runner) report(ctx context.Context) (Report, error) {
	out := Report{Known: maps.Clone(r.seen)}
	for _, d := range r.found {
		short, err := r.shorten(ctx, d)
		if err != nil {
			return Report{}, err
		}
		out.Differences = append(out.Differences, *short)
	}
	slices.SortFunc(out.Differences, func(a, b Difference) int { return strings.Compare(a.signature, b.signature) })
	out.Requests = int(r.requests.Load())
	return out, nil
}

// news are the faults that are not known.
func (r *runner) news(step Step, all []fault) []fault {
	return slices.DeleteFunc(all, func(f fault) bool {
		text := f.String()
		i := slices.IndexFunc(r.Known, func(k Known) bool {
			return k.Step.MatchString(step.Method+" "+step.Path) && k.Fault.MatchString(text)
		})
		if i < 0 {
			return false
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.seen[r.Known[i].Reason]++
		return true
	})
}

// run sends a sequence to both servers, up to the first step that is answered differently.
func (r *runner) run(ctx context.Context, steps []Step) (*Difference, error) {
	name := fmt.Sprintf("d%s%06d", r.id, r.names.Add(1))
	a, errA := newSide(r.A, name+"a")
	b, errB := newSide(r.B, name+"b")
	if err := errors.Join(errA, errB); err != nil {
		return nil, err
	}
	defer a.clean(context.WithoutCancel(ctx), steps)
	defer b.clean(context.WithoutCancel(ctx), steps)
	for i, step := range steps {
		r.requests.Add(1)
		one, err := a.send(ctx, step)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.A.Name, err)
		}
		if one.code == 0 {
			return nil, nil // the server that is right panics: nobody knows what is
		}
		other, err := b.send(ctx, step)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.B.Name, err)
		}
		if all := r.news(step, faults("", a.normal(one), b.normal(other))); len(all) > 0 {
			return differenceOf(steps[:i+1], all), nil
		}
	}
	return nil, nil
}

// clean removes what a sequence has left.
func (s *side) clean(ctx context.Context, steps []Step) {
	collection, _, _ := strings.Cut(steps[0].Path, "?")
	collection, _, _ = strings.Cut(collection, "/@name@")
	for _, name := range append([]string{s.name}, s.others...) {
		s.remove(ctx, collection+"/"+name)
	}
}

// remove deletes an object past its finalizers. That it is not there is as good.
func (s *side) remove(ctx context.Context, path string) {
	a, err := s.send(ctx, Step{Method: "DELETE", Path: path + "?gracePeriodSeconds=0"})
	if err == nil && a.code == 200 && strings.Contains(string(a.body), `"finalizers"`) {
		_, _ = s.send(ctx, Step{Method: "PATCH", Path: path, ContentType: "application/merge-patch+json", Body: `{"metadata":{"finalizers":null}}`})
	}
}

var (
	index  = regexp.MustCompile(`\[[0-9]+\]`)
	quoted = regexp.MustCompile(`"[^"]*"|[0-9]+`)
)

// differenceOf describes how the last of some steps is answered. Sequences with the same signature
// show the same.
func differenceOf(steps []Step, all []fault) *Difference {
	// The code says most.
	slices.SortStableFunc(all, func(a, b fault) int {
		return strings.Compare(strings.TrimPrefix(a.path, ".code"), strings.TrimPrefix(b.path, ".code"))
	})
	last := steps[len(steps)-1]
	path, _, _ := strings.Cut(last.Path, "?")
	d := &Difference{Steps: steps, Count: 1, signature: last.Method + " " + path + " " + last.ContentType}
	for i, f := range all {
		if i < 12 {
			d.Faults = append(d.Faults, f.String())
		}
		if i < 2 {
			d.signature += "\n" + index.ReplaceAllString(f.path, "[]")
			if f.path == ".code" || f.path == ".body.message" || f.path == ".body.reason" {
				d.signature += quoted.ReplaceAllString(fmt.Sprintf(" %.80s %.80s", shown(f.a), shown(f.b)), "…")
			}
		}
	}
	return d
}
