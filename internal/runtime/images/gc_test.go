package images_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/observe/metrics/metricstest"
	"berth/internal/pod"
	"berth/internal/record/events/messagestest"
	"berth/internal/record/journal"
	"berth/internal/runtime/images"
)

// shelf is a store of images whose disk is as large as they are, by the unit of its sizes.
type shelf struct {
	*store
	dir      string // of the records
	used     map[string]bool
	size     uint64 // of the disk
	fixed    uint64 // what is in use besides images
	stuck    map[string]bool
	removed  []string
	told     []string
	lists    int
	diskErrs int // how often the disk cannot be looked at
	removing func(id string)
}

func (s *shelf) ListImages(context.Context) ([]*runtimeapi.Image, error) {
	s.lists++
	return s.store.ListImages(context.Background())
}

func (s *shelf) ImageUsers(context.Context, func(pod.UID) bool) (map[string][]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	users := map[string][]string{}
	for name := range s.used {
		users[name] = []string{"default/web/c"}
	}
	return users, nil
}

// use has containers use these images, and no others.
func (s *shelf) use(used map[string]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used = used
}

func (s *shelf) RemoveImage(_ context.Context, id string) error {
	if s.stuck[id] {
		return errors.New("it is stuck")
	}
	if s.removing != nil {
		s.removing(id)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removed = append(s.removed, strings.TrimPrefix(id, "id:"))
	delete(s.present, strings.TrimPrefix(id, "id:"))
	return nil
}

func (s *shelf) ImageFilesystem(context.Context) (string, error) { return "/disk", nil }

func (s *shelf) disk(string) (capacity, available uint64, err error) {
	if s.diskErrs > 0 {
		s.diskErrs--
		return 0, 0, errors.New("no disk")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	used := s.fixed
	for _, i := range s.present {
		used += i.Size
	}
	return s.size, s.size - min(used, s.size), nil
}

// put adds an image of a size.
func (s *shelf) put(name string, size uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.present[name] = &runtimeapi.Image{Id: "id:" + name, RepoTags: []string{name}, Size: size}
}

// records returns the images that have records, sorted.
func (s *shelf) records(t *testing.T) []string {
	files, err := filepath.Glob(s.dir + "/pulled/*")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, f := range files {
		var r struct {
			ImageRef string `json:"imageRef"`
		}
		b, err := os.ReadFile(f)
		if err == nil {
			err = json.Unmarshal(b, &r)
		}
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, r.ImageRef)
	}
	slices.Sort(found)
	return found
}

func newShelf(t *testing.T, size uint64) *shelf {
	return &shelf{dir: t.TempDir(), store: &store{present: map[string]*runtimeapi.Image{}}, used: map[string]bool{}, size: size, stuck: map[string]bool{}}
}

// collector returns a collector with the kubelet's defaults.
func (s *shelf) collector(change func(*images.GCConfig)) *images.Collector {
	c := images.GCConfig{
		Store: s, Puller: images.New(images.Config{Runtime: s.store, Recorder: &recorder{}, Journal: journal.New(slog.New(slog.DiscardHandler)), RecordsDir: s.dir}),
		MinAge: 2 * time.Minute, HighPercent: 85, LowPercent: 80, Disk: s.disk, HasImageVolumes: func(pod.UID) bool { return false },
		NodeEvent: func(kind, reason, message string) {
			messagestest.SawEvent(reason, message)
			s.told = append(s.told, kind+" "+reason+": "+message)
		}, Log: slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&c)
	}
	return images.NewCollector(c)
}

// gone is the event of images that were removed for the disk's sake.
func gone(images, names string) string {
	return "Normal ImagesRemoved: Removed " + images + " to free disk space: " + names
}

// run runs the collector for so long.
func run(t *testing.T, c *images.Collector, d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	if err := c.Run(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("it ended with %v", err)
	}
}

// full is the event of a disk that stays too full.
func full(used string, freed int) string {
	return fmt.Sprintf("Warning FreeDiskSpaceFailed: Insufficient free disk space on the node's image filesystem (%s used). "+
		"Failed to free sufficient space by deleting unused images (freed %d bytes). "+
		"Investigate disk usage, as it could be used by active images, logs, volumes, or other data.", used, freed)
}

func TestImageGC(t *testing.T) {
	tests := map[string]struct {
		arrange func(*shelf)
		config  func(*images.GCConfig)
		runs    time.Duration
		removed []string
		told    []string
	}{
		"below the high threshold": {
			arrange: func(s *shelf) { s.put("a:1", 84) }, runs: time.Hour,
		},
		"at it, down to the low one, in the order of their use": {
			arrange: func(s *shelf) { s.put("a:1", 4); s.put("b:1", 4); s.put("c:1", 4); s.fixed = 74 },
			runs:    6 * time.Minute, removed: []string{"a:1", "b:1"}, told: []string{gone("2 unused images (8 B)", "a:1, b:1")},
		},
		"not before the minimum age": {
			arrange: func(s *shelf) { s.put("a:1", 90) },
			config:  func(c *images.GCConfig) { c.MinAge = 12 * time.Minute }, runs: 11 * time.Minute,
			told: []string{full("90% of 100 B", 0), full("90% of 100 B", 0), "Warning ImageGCFailed: " + strings.TrimPrefix(full("90% of 100 B", 0), "Warning FreeDiskSpaceFailed: ")},
		},
		"what is in use stays": {
			arrange: func(s *shelf) { s.put("a:1", 4); s.put("b:1", 6); s.fixed = 76; s.used["id:a:1"] = true },
			runs:    6 * time.Minute, removed: []string{"b:1"}, told: []string{gone("1 unused image (6 B)", "b:1")},
		},
		"an image that is mounted as a volume is in use by its name": {
			arrange: func(s *shelf) { s.put("a:1", 4); s.put("b:1", 6); s.fixed = 76; s.used["a:1"] = true },
			runs:    6 * time.Minute, removed: []string{"b:1"}, told: []string{gone("1 unused image (6 B)", "b:1")},
		},
		"what the runtime pins stays": {
			arrange: func(s *shelf) { s.put("a:1", 4); s.put("b:1", 6); s.fixed = 76; s.present["a:1"].Pinned = true },
			runs:    6 * time.Minute, removed: []string{"b:1"}, told: []string{gone("1 unused image (6 B)", "b:1")},
		},
		"what is looked ahead for stays": {
			arrange: func(s *shelf) { s.put("a:1", 4); s.put("b:1", 6); s.fixed = 76 },
			config:  func(c *images.GCConfig) { lookAhead(c.Puller, "1", container("c", "a:1", v1.PullIfNotPresent)) },
			runs:    6 * time.Minute, removed: []string{"b:1"}, told: []string{gone("1 unused image (6 B)", "b:1")},
		},
		"what the agent did not pull stays, if so told": {
			arrange: func(s *shelf) { s.put("a:1", 4); s.fixed = 76 },
			config: func(c *images.GCConfig) {
				c.KeepUnrecorded = true
				if _, err := c.Puller.Ensure(context.Background(), podOf("1"), container("c", "b:1", v1.PullAlways), nil, ""); err != nil {
					panic(err)
				}
			},
			runs: 6 * time.Minute, removed: []string{"b:1"}, told: []string{gone("1 unused image (6 B)", "id:b:1")},
		},
		"too little can be freed": {
			arrange: func(s *shelf) { s.size = 100 << 30; s.put("a:1", 1<<30); s.fixed = 95 << 30 },
			runs:    6 * time.Minute, removed: []string{"a:1"},
			told: []string{full("96% of 100.0 GiB", 1<<30), gone("1 unused image (1.0 GiB)", "a:1")},
		},
		"an image that cannot be removed does not keep the others": {
			arrange: func(s *shelf) { s.put("a:1", 6); s.put("b:1", 6); s.fixed = 74; s.stuck["id:a:1"] = true },
			runs:    6 * time.Minute, removed: []string{"b:1"}, told: []string{gone("1 unused image (6 B)", "b:1")},
		},
		"a failure is told of when it comes again": {
			arrange: func(s *shelf) { s.put("a:1", 1); s.diskErrs = 2 }, runs: 16 * time.Minute,
			told: []string{"Warning ImageGCFailed: image filesystem: no disk"},
		},
		"a disk without a size": {
			arrange: func(s *shelf) { s.size = 0 }, runs: 6 * time.Minute,
			told: []string{"Warning InvalidDiskCapacity: invalid capacity 0 on image filesystem"},
		},
		"100 percent is never": {
			arrange: func(s *shelf) { s.put("a:1", 100) },
			config:  func(c *images.GCConfig) { c.HighPercent = 100 }, runs: time.Hour,
		},
		"the maximum age, only when the agent is as old": {
			arrange: func(s *shelf) { s.put("a:1", 1); s.put("b:1", 1); s.used["id:b:1"] = true },
			config:  func(c *images.GCConfig) { c.HighPercent, c.MaxAge = 100, 30*time.Minute },
			runs:    36 * time.Minute, removed: []string{"a:1"},
			told: []string{"Normal ImagesRemoved: Removed 1 unused image (1 B) that exceeded imageMaximumGCAge (30m0s): a:1"},
		},
		"the maximum age of one that came later and was never used": {
			arrange: func(s *shelf) { go func() { time.Sleep(34 * time.Minute); s.put("a:1", 1) }() },
			config:  func(c *images.GCConfig) { c.HighPercent, c.MaxAge = 100, 30*time.Minute }, runs: 61 * time.Minute,
		},
		"not yet the maximum age": {
			arrange: func(s *shelf) { s.put("a:1", 1) },
			config:  func(c *images.GCConfig) { c.HighPercent, c.MaxAge = 100, 30*time.Minute }, runs: 31 * time.Minute,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newShelf(t, 100)
				tt.arrange(s)
				if name == "what the agent did not pull stays, if so told" {
					s.smaller = 694
				}
				c := s.collector(tt.config)
				synctest.Wait()
				run(t, c, tt.runs)
				if d := cmp.Diff(tt.removed, s.removed); d != "" {
					t.Errorf("removed: %s", d)
				}
				if d := cmp.Diff(tt.told, s.told); d != "" {
					t.Errorf("events: %s", d)
				}
			})
		})
	}
}

// The least recently used go first, those that never were used before them.
func TestImageGCOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShelf(t, 100)
		for i := range 5 {
			s.put(fmt.Sprintf("%d:1", i), 1)
		}
		registry := prometheus.NewRegistry()
		c := s.collector(func(g *images.GCConfig) { g.Metrics = registry })
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- c.Run(ctx) }()
		for _, now := range []string{"3:1", "1:1", "0:1"} { // each is used in one round
			s.use(map[string]bool{"id:" + now: true})
			time.Sleep(5 * time.Minute)
			synctest.Wait()
		}
		time.Sleep(time.Second)
		s.use(nil)
		s.fixed = 95
		freed, err := c.RemoveUnused(t.Context())
		if err != nil || freed != 5 {
			t.Errorf("freed %d: %v", freed, err)
		}
		if d := cmp.Diff([]string{"2:1", "4:1", "3:1", "1:1", "0:1"}, s.removed); d != "" {
			t.Error(d)
		}
		if d := cmp.Diff(map[string]float64{`kubelet_image_garbage_collected_total{reason="space"}`: 5}, metricstest.Values(t, registry)); d != "" {
			t.Errorf("images that were counted (-want +got):\n%s", d)
		}
		cancel()
		<-done
	})
}

// The records of pulls go with their images, whoever removed those, and those of pulls under way do
// not.
func TestRecordsGoWithTheirImages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShelf(t, 100)
		s.smaller = 699
		var p *images.Puller
		c := s.collector(func(c *images.GCConfig) { p = c.Puller })
		for _, name := range []string{"kept:1", "gone:1"} {
			if _, err := ensure(t.Context(), p, "1", container("c", name, v1.PullAlways)); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.RemoveImage(t.Context(), "id:gone:1"); err != nil {
			t.Fatal(err)
		}
		s.takes = time.Hour
		ctx, cancel := context.WithCancel(t.Context())
		pulled := make(chan error)
		go func() { _, err := ensure(ctx, p, "1", container("c", "slow:1", v1.PullAlways)); pulled <- err }()
		synctest.Wait()
		run(t, c, time.Minute)
		if got := s.records(t); !slices.Equal(got, []string{"id:gone:1", "id:kept:1"}) {
			t.Errorf("while an image is being pulled there are records of %q", got)
		}
		cancel()
		<-pulled
		run(t, c, time.Minute)
		if got := s.records(t); !slices.Equal(got, []string{"id:kept:1"}) {
			t.Errorf("there are records of %q", got)
		}
	})
}

// By hand the minimum age protects nothing, and what is not tried is not done.
func TestPrune(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShelf(t, 100)
		s.smaller = 694
		registry := prometheus.NewRegistry()
		c := s.collector(func(c *images.GCConfig) {
			c.KeepUnrecorded, c.Metrics = true, registry
			for _, name := range []string{"pulled:1", "stuck:1"} {
				if _, err := ensure(t.Context(), c.Puller, "1", container("c", name, v1.PullAlways)); err != nil {
					t.Fatal(err)
				}
			}
		})
		s.put("brought:1", 2)
		s.put("used:1", 3)
		s.use(map[string]bool{"used:1": true})
		s.stuck["id:stuck:1"] = true
		time.Sleep(2 * time.Minute) // pods do not start any more
		for _, tt := range []struct {
			options images.PruneOptions
			want    []string // of each image
			events  int
		}{
			{images.PruneOptions{DryRun: true}, []string{"brought NotPulled", "pulled Unused", "stuck Unused", "used InUse"}, 0},
			{images.PruneOptions{DryRun: true, All: true}, []string{"brought Unused", "pulled Unused", "stuck Unused", "used InUse"}, 0},
			{images.PruneOptions{}, []string{"brought NotPulled", "pulled Unused removed", "stuck Unused it is stuck", "used InUse"}, 1},
			{images.PruneOptions{All: true}, []string{"brought Unused removed", "stuck Unused it is stuck", "used InUse"}, 2},
		} {
			verdicts, err := c.Prune(t.Context(), tt.options)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, v := range verdicts {
				line := strings.TrimSuffix(strings.TrimPrefix(v.ID, "id:"), ":1") + " " + string(v.Fate)
				if v.Removed {
					line += " removed"
				}
				got = append(got, strings.TrimSuffix(line+" "+v.Error, " "))
			}
			slices.Sort(got)
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("%+v: %s", tt.options, d)
			}
			if len(s.told) != tt.events {
				t.Errorf("%+v: %q was told", tt.options, s.told)
			}
		}
		if d := cmp.Diff([]string{"id:stuck:1"}, s.records(t)); d != "" {
			t.Errorf("records: %s", d)
		}
		if counted := metricstest.Values(t, registry); len(counted) != 0 {
			t.Errorf("what was asked for is counted as garbage: %v", counted)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := c.Prune(ctx, images.PruneOptions{}); !errors.Is(err, context.Canceled) {
			t.Errorf("of a client that has left: %v", err)
		}
	})
}

// An agent whose disk and clock begin no collection knows all the same how old its images are.
func TestRemoveUnusedWithoutCollections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShelf(t, 100)
		s.put("old:1", 1)
		c := s.collector(func(c *images.GCConfig) { c.HighPercent = 100 })
		run(t, c, 3*time.Minute)
		s.put("new:1", 1)
		if freed, err := c.RemoveUnused(t.Context()); freed != 1 || err != nil || !slices.Equal(s.removed, []string{"old:1"}) {
			t.Errorf("removed %q of %d bytes: %v", s.removed, freed, err)
		}
	})
}

// An image that was given to a container stays until there is the container, however old it is:
// also when it was given while others were removed.
func TestImagesOfPodsThatStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShelf(t, 100)
		s.put("a:1", 1)
		s.put("b:1", 1)
		s.put("c:1", 1)
		var p *images.Puller
		c := s.collector(func(c *images.GCConfig) { p = c.Puller })
		run(t, c, time.Hour)
		give := func(image string) {
			t.Helper()
			if _, err := ensure(t.Context(), p, "1", container("c", image, v1.PullIfNotPresent)); err != nil {
				t.Error(err)
			}
		}
		give("a:1")
		s.removing = func(string) { give("c:1") }
		if freed, err := c.RemoveUnused(t.Context()); freed != 1 || err != nil || !slices.Equal(s.removed, []string{"b:1"}) {
			t.Errorf("removed %q of %d bytes: %v", s.removed, freed, err)
		}
		s.removing = nil
		time.Sleep(2 * time.Minute)
		if verdicts, err := c.Prune(t.Context(), images.PruneOptions{All: true}); err != nil || len(verdicts) != 2 || !verdicts[0].Removed || !verdicts[1].Removed {
			t.Errorf("later: %+v, %v", verdicts, err)
		}
	})
}
