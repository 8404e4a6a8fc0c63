package embedded

import (
	"errors"
	"testing"

	"github.com/distribution/reference"
)

func TestDownloadsOf(t *testing.T) {
	content := map[string]string{
		"sha256:half":  `{"config":{"digest":"c1","size":10},"layers":[{"digest":"l1","size":100},{"digest":"l2","size":300},{"digest":"l3","size":90}]}`,
		"sha256:there": `{"config":{"digest":"c1","size":10},"layers":[{"digest":"l1","size":100}]}`,
		"sha256:index": `{"manifests":[{"digest":"sha256:half","size":300}]}`,
		"l1":           "not JSON",
	}
	d := &Downloads{
		active:  map[string]int64{"l2": 120},
		there:   map[string]int64{"sha256:half": 300, "sha256:there": 200, "sha256:index": 100, "c1": 10, "l1": 100, "big": maxManifest + 1},
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
	tests := map[string]struct {
		image string
		want  Download
		known bool
	}{
		"a layer is there, one is under way, one waits": {"registry.example:5000/team/app:1", Download{Done: 230, Total: 500}, true},
		"all is there":         {"registry.example:5000/team/there:1", Download{}, false},
		"another registry":     {"other.example/team/app:1", Download{}, false},
		"nothing has come yet": {"registry.example:5000/team/new:1", Download{}, false},
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
