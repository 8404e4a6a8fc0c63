package embedded

import (
	"errors"
	"testing"
	"time"

	"github.com/distribution/reference"
)

func TestDownloadsOf(t *testing.T) {
	content := map[string]string{
		"sha256:half":  `{"config":{"digest":"c1","size":10},"layers":[{"digest":"l1","size":100},{"digest":"l2","size":300},{"digest":"l3","size":90}]}`,
		"sha256:there": `{"config":{"digest":"c1","size":10},"layers":[{"digest":"l1","size":100}]}`,
		"sha256:slow":  `{"layers":[{"digest":"l1","size":100},{"digest":"r1","size":100},{"digest":"r2","size":200},{"digest":"r3","size":300}]}`,
		"sha256:fresh": `{"layers":[{"digest":"l1","size":100},{"digest":"r3","size":300}]}`,
		"sha256:index": `{"manifests":[{"digest":"sha256:half","size":300}]}`,
		"l1":           "not JSON",
	}
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := func(seconds int) time.Time { return began.Add(time.Duration(seconds) * time.Second) }
	d := &Downloads{
		active: map[string]ingest{
			"l2": {offset: 120, began: began, updated: at(12)}, "r1": {offset: 50, began: began, updated: at(5)},
			"r2": {offset: 80, began: began, updated: at(2)}, "r3": {began: began, updated: began},
		},
		there:   map[string]int64{"sha256:half": 300, "sha256:there": 200, "sha256:slow": 200, "sha256:fresh": 200, "sha256:index": 100, "c1": 10, "l1": 100, "big": maxManifest + 1},
		sources: map[string]map[string][]string{},
		read: func(digest string) ([]byte, error) {
			if digest == "big" {
				return nil, errors.New("a layer is not read")
			}
			return []byte(content[digest]), nil
		},
	}
	for _, digest := range []string{"sha256:half", "sha256:index", "l1", "big"} {
		d.sources[digest] = repositoriesOf(map[string]string{"containerd.io/distribution.source.registry.example": "team/other,team/app", "other": "team/app"})
	}
	d.sources["sha256:there"] = repositoriesOf(map[string]string{"containerd.io/distribution.source.registry.example": "team/there"})
	for _, name := range []string{"slow", "fresh"} {
		d.sources["sha256:"+name] = repositoriesOf(map[string]string{"containerd.io/distribution.source.registry.example": "team/" + name})
	}
	tests := map[string]struct {
		image string
		want  Download
		known bool
	}{
		"a layer is there, one is under way, one waits": {"registry.example:5000/team/app:1", Download{Done: 230, Total: 500, Rate: 10, Last: at(12)}, true},
		"two layers come, one has not brought anything": {"registry.example/team/slow:1", Download{Done: 230, Total: 700, Rate: 50, Last: at(5)}, true},
		"the rate is not known yet":                     {"registry.example/team/fresh:1", Download{Done: 100, Total: 400, Last: began}, true},
		"all is there":                                  {"registry.example:5000/team/there:1", Download{}, false},
		"another registry":                              {"other.example/team/app:1", Download{}, false},
		"nothing has come yet":                          {"registry.example:5000/team/new:1", Download{}, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			image, err := reference.ParseNormalizedNamed(tt.image)
			if err != nil {
				t.Fatal(err)
			}
			got, known, err := d.Of(image)
			if err != nil || got != tt.want || known != tt.known {
				t.Errorf("%+v, %v, %v; want %+v, %v", got, known, err, tt.want, tt.known)
			}
		})
	}
}
