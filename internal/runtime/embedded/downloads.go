package embedded

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	contentapi "github.com/containerd/containerd/api/services/content/v1"
	"github.com/distribution/reference"
)

const (
	// sourceLabel and the host of the registry, without its port, name the label of content by
	// which containerd knows the repositories that it came from.
	sourceLabel = "containerd.io/distribution.source."
	// maxManifest is the most that a manifest has, in bytes; registries refuse larger ones.
	maxManifest = 4 << 20
)

// Download is how far the content of an image is that is being pulled, in bytes.
type Download struct {
	Done, Total int64
	// Rate is how many bytes come a second, on average since the parts under way began; 0 if it is
	// not known yet. Last is when the newest bytes were stored: containerd stores 1 MiB at a time.
	Rate int64
	Last time.Time
}

// ingest is content that is being downloaded.
type ingest struct {
	offset         int64 // bytes that have come
	began, updated time.Time
}

// Downloads are how far the downloads of a runtime are at one moment.
type Downloads struct {
	active  map[string]ingest // by digest
	there   map[string]int64  // sizes of content, by digest
	sources map[string]map[string][]string
	read    func(digest string) ([]byte, error)
}

// Downloads asks the runtime what it downloads. The answer reads manifests while ctx lasts.
func (i *Images) Downloads(ctx context.Context) (*Downloads, error) {
	ctx = inPods(ctx)
	client := contentapi.NewContentClient(i.conn)
	d := &Downloads{active: map[string]ingest{}, there: map[string]int64{}, sources: map[string]map[string][]string{}}
	active, err := client.ListStatuses(ctx, &contentapi.ListStatusesRequest{})
	if err != nil {
		return nil, fmt.Errorf("downloads of the runtime: %w", err)
	}
	for _, s := range active.Statuses {
		// What is fetched is called after its kind and digest: "layer-sha256:…".
		if _, digest, ok := strings.Cut(s.Ref, "-"); ok {
			d.active[digest] = ingest{s.Offset, s.StartedAt.AsTime(), s.UpdatedAt.AsTime()}
		}
	}
	stream, err := client.List(ctx, &contentapi.ListContentRequest{})
	for err == nil {
		var part *contentapi.ListContentResponse
		if part, err = stream.Recv(); err != nil {
			break
		}
		for _, info := range part.Info {
			d.there[info.Digest] = info.Size
			d.sources[info.Digest] = repositoriesOf(info.Labels)
		}
	}
	if !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("content of the runtime: %w", err)
	}
	d.read = func(digest string) ([]byte, error) {
		stream, err := client.Read(ctx, &contentapi.ReadContentRequest{Digest: digest})
		var all []byte
		for err == nil {
			var part *contentapi.ReadContentResponse
			if part, err = stream.Recv(); err == nil {
				all = append(all, part.Data...)
			}
		}
		if !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("read %s: %w", digest, err)
		}
		return all, nil
	}
	return d, nil
}

// repositoriesOf returns the repositories by registry that labels name.
func repositoriesOf(labels map[string]string) map[string][]string {
	var found map[string][]string
	for name, value := range labels {
		if registry, ok := strings.CutPrefix(name, sourceLabel); ok {
			if found == nil {
				found = map[string][]string{}
			}
			found[registry] = strings.Split(value, ",")
		}
	}
	return found
}

// Of returns how far the image of a repository is, and false when that is not known: before its
// manifest has come, and when nothing of it is being downloaded. Of several images of the
// repository it is the one of which most is under way.
func (d *Downloads) Of(image reference.Named) (Download, bool, error) {
	var best Download
	most := 0
	host, _, _ := strings.Cut(reference.Domain(image), ":") // registries are not named by IPv6 addresses
	for digest, size := range d.there {
		if size > maxManifest || !slices.Contains(d.sources[digest][host], reference.Path(image)) {
			continue
		}
		b, err := d.read(digest)
		if err != nil {
			return Download{}, false, err
		}
		if one, under := d.computeDownload(b); under > most {
			best, most = one, under
		}
	}
	return best, most > 0, nil
}

// computeDownload returns how far an image with this manifest is, and how many parts of it are
// under way: none if it is no manifest.
func (d *Downloads) computeDownload(manifest []byte) (all Download, under int) {
	type part struct {
		Digest string `json:"digest"`
		Size   int64  `json:"size"`
	}
	var m struct {
		Config part   `json:"config"`
		Layers []part `json:"layers"`
	}
	if json.Unmarshal(manifest, &m) != nil || len(m.Layers) == 0 {
		return all, 0
	}
	for _, p := range append(m.Layers, m.Config) {
		all.Total += p.Size
		if _, ok := d.there[p.Digest]; ok {
			all.Done += p.Size
		} else if a, ok := d.active[p.Digest]; ok {
			all.Done += min(a.offset, p.Size)
			if took := a.updated.Sub(a.began); a.offset > 0 && took > 0 {
				all.Rate += int64(float64(a.offset) / took.Seconds())
			}
			if a.updated.After(all.Last) {
				all.Last = a.updated
			}
			under++
		}
	}
	return all, under
}
