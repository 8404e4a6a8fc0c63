package podconfig

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"

	"berth/internal/pod"
	"berth/internal/source/manifest"
)

const (
	// loudFailures is how many consecutive failures of a URL are logged as warnings.
	loudFailures = 3
	// retryFirst is the delay after the first failure of a URL. It doubles with each further one,
	// up to the period.
	retryFirst = time.Second
	// retryPatience limits a server's Retry-After, in periods.
	retryPatience = 5
)

// httpSource reads manifests from URLs, each in its own goroutine. Only a valid response changes or
// removes a pod.
type httpSource struct {
	log      *slog.Logger
	decode   func(from manifest.Origin, content []byte) manifest.Decoded
	names    manifest.NameRule
	lastGood *lastGood
	client   *http.Client
	// header is sent with each request. Differs from the kubelet, which logs the values: they hold
	// tokens and are never logged here.
	header http.Header
	poll   time.Duration
	pages  []*page
}

func newHTTPSource(cfg Config, urls []string) (*httpSource, error) {
	pages, err := parseURLs(urls)
	if err != nil {
		return nil, err
	}
	if err := checkHeader(cfg.Header); err != nil {
		return nil, err
	}
	d := manifest.Decoder{Node: cfg.NodeName, Names: cfg.Names, AllowUnknownFields: cfg.AllowUnknownFields}
	s := &httpSource{
		log: cfg.Log, decode: d.Decode, names: cfg.Names, header: canonicalHeader(cfg.Header), poll: cfg.Poll, pages: pages,
		lastGood: newLastGood(cfg.StateDir, pod.HTTPSource, d, cfg.Log),
	}
	transport := cfg.Transport
	if transport == nil {
		transport = newTransport()
	}
	s.client = &http.Client{Transport: transport, CheckRedirect: s.checkRedirect}
	return s, nil
}

func (s *httpSource) run(ctx context.Context, handOver func(snapshot)) error {
	defer s.lastGood.open(ctx)()
	defer s.client.CloseIdleConnections()
	s.restore()

	type news struct {
		page int
		standing
		answered bool
	}
	results := make(chan news)
	g, ctx := errgroup.WithContext(ctx)
	for i, p := range s.pages {
		g.Go(func() error {
			s.follow(ctx, p, func(now standing) {
				select {
				case results <- news{i, now, p.answered}:
				case <-ctx.Done():
				}
			})
			return nil
		})
	}
	standings := make([]standing, len(s.pages))
	unanswered := len(s.pages)
	answered := make([]bool, len(s.pages))
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case n := <-results:
			standings[n.page] = n.standing
			handOver(collectPages(standings))
			if n.answered && !answered[n.page] {
				answered[n.page] = true
				if unanswered--; unanswered == 0 {
					s.lastGood.forgetOthers(s.pageNames()) // URLs that are no longer configured
				}
			}
		}
	}
	return g.Wait()
}

// collectPages returns the complete set, page by page.
func collectPages(standings []standing) snapshot {
	var out snapshot
	for _, now := range standings {
		out.partial = out.partial || !now.known
		out.add(now.Decoded)
	}
	return out
}

// restore loads the persisted version of each page, which is valid until the page responds. The
// page then counts as known: it can have no other running pods. A page without a persisted version
// also counts as known, as it never had pods; but not if a persisted version is unusable or belongs
// to a removed URL, since its pods may be running.
func (s *httpSource) restore() {
	safe := s.lastGood.listed && !s.lastGood.hasOthers(s.pageNames())
	for _, p := range s.pages {
		objects, err := s.lastGood.restore(p.name)
		if err != nil {
			p.Problems = []manifest.Problem{s.problem(p, manifest.SeverityWarning, err.Error())}
		}
		p.Objects = objects
		p.known = len(objects) > 0 || safe && err == nil
	}
}

func (s *httpSource) pageNames() []string {
	names := make([]string, len(s.pages))
	for i, p := range s.pages {
		names[i] = p.name
	}
	return names
}

// follow polls the page until ctx is done, and publishes its standing when that changes.
func (s *httpSource) follow(ctx context.Context, p *page, publish func(standing)) {
	var published *standing
	for {
		a, err := s.fetch(ctx, p)
		if ctx.Err() != nil {
			return
		}
		var now standing
		var patience time.Duration
		if err != nil {
			patience = a.retryAfter
			now = s.fail(ctx, p, err)
		} else {
			now = s.succeed(p, a)
		}
		if published == nil || published.known != now.known || !published.Equal(now.Decoded) {
			published = &now
			publish(now)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(nextRequest(s.poll, p.failures, patience)):
		}
	}
}

// fail records a failed request, and returns the unchanged objects of the page with the problem.
func (s *httpSource) fail(ctx context.Context, p *page, err error) standing {
	p.failures++
	level := slog.LevelWarn
	if p.failures > loudFailures {
		level = slog.LevelDebug
	}
	s.log.Log(ctx, level, "cannot read manifests from a URL", "url", p.name, "failures", p.failures, "error", err)
	now := orLastGood(p.Objects, manifest.Decoded{Problems: []manifest.Problem{s.problem(p, manifest.SeverityError, "cannot be read: "+err.Error())}})
	now.Problems = append(now.Problems, p.Problems...)
	return standing{Decoded: now, known: p.known}
}

// succeed processes a response, and returns the page's new standing.
func (s *httpSource) succeed(p *page, a answer) standing {
	if p.failures > 0 {
		s.log.Info("a URL of manifests can be read again", "url", p.name, "failures", p.failures)
	}
	p.failures = 0
	if a.unchanged {
		return p.standing
	}
	p.validators = a.validators
	sum := sha256.Sum256(a.content)
	if p.answered && sum == p.sum {
		return p.standing
	}
	p.answered, p.sum = true, sum
	now := s.decode(manifest.Origin{Source: pod.HTTPSource, Path: p.name}, a.content)
	if bad := now.Refusal(); bad >= 0 {
		if a.isHTML {
			now = manifest.Decoded{Problems: []manifest.Problem{s.problem(p, manifest.SeverityError, "answers with an HTML page, not with a manifest: is there a URL of the file itself?")}}
		} else if s.names == manifest.MangleNames && len(now.Objects) > 0 {
			// As in the kubelet; `berth run` treats the documents of a URL like those of a file.
			now.Objects = nil
			now.Problems[bad].Message += "; nothing of the answer is taken"
		}
	}
	p.standing = standing{Decoded: orLastGood(p.Objects, now), known: true}
	s.lastGood.save(p.name, p.Objects)
	return p.standing
}

func (s *httpSource) problem(p *page, severity manifest.Severity, message string) manifest.Problem {
	return manifest.Problem{Source: pod.HTTPSource, Path: p.name, Severity: severity, Message: message}
}

// nextRequest returns the delay until the next request after consecutive failures; patience is the
// server's Retry-After.
func nextRequest(period time.Duration, failures int, patience time.Duration) time.Duration {
	if failures == 0 {
		return period
	}
	slowest := max(period, retryFirst)
	wait := min(retryFirst<<min(failures-1, 20), slowest)
	return max(wait, min(patience, retryPatience*slowest))
}
