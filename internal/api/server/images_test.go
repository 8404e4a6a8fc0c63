package server_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"berth/internal/runtime/images"
)

func TestPruneImages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newNode().handlers()
		if got := serve(t, h).ask("POST", "/berth/v1/images/prune", nil); got.Status != 404 {
			t.Errorf("of an agent that cannot: %+v", got)
		}
		var asked []images.PruneOptions
		var verdicts []images.Verdict
		var err error
		h.Images = func(_ context.Context, o images.PruneOptions) ([]images.Verdict, error) {
			time.Sleep(10 * time.Minute) // the runtime takes its time
			asked = append(asked, o)
			return verdicts, err
		}
		a := serve(t, h)
		prune := func(body string, want answer) {
			t.Helper()
			if got := a.ask("POST", "/berth/v1/images/prune", strings.NewReader(body)); got != want {
				t.Errorf("%q: got %+v, want %+v", body, got, want)
			}
		}
		prune("", answer{200, "[]\n"})
		verdicts = []images.Verdict{{ID: "sha256:1", Names: []string{"a:1"}, Size: 5, Fate: images.Unused, Removed: true}, {ID: "sha256:2", Fate: images.InUse, Users: []string{"n/p/c"}}}
		prune(`{"all":true}`, answer{200, `[{"id":"sha256:1","names":["a:1"],"size":5,"fate":"Unused","removed":true},{"id":"sha256:2","size":0,"fate":"InUse","users":["n/p/c"]}]` + "\n"})
		err = errors.New("list images: the runtime is down")
		prune(`{"dryRun":true}`, answer{503, "list images: the runtime is down\n"})
		prune(`{"force":true}`, answer{400, "body: json: unknown field \"force\"; expected {\"dryRun\": true, \"all\": true}\n"})
		if len(asked) != 3 || asked[0] != (images.PruneOptions{}) || asked[1] != (images.PruneOptions{All: true}) || asked[2] != (images.PruneOptions{DryRun: true}) {
			t.Errorf("asked for %+v", asked)
		}
	})
}
