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
	// sourceLabel, followed by the registry's host without port, is the content label by which
	// containerd records the source repositories.
	sourceLabel = "containerd.io/distribution.source."
	// maxManifest is the maximum size of a manifest in bytes; registries reject larger ones.
	maxManifest = 4 << 20
)

// Download is the progress of an image pull, in bytes.
type Download struct {
	Done, Total int64
	// Rate is in bytes per second, averaged since the start of the active parts; 0 if unknown. Last
	// is when the newest bytes were stored: containerd stores 1 MiB at a time.
	Rate int64
	Last time.Time
}

type ingest struct {
	offset         int64 // bytes received
	began, updated time.Time
}

// Downloads is a snapshot of a runtime's active downloads.
type Downloads struct {
	active  map[string]ingest // by digest
	there   map[string]int64  // sizes of stored content, by digest
	sources map[string]map[string][]string
	read    func(digest string) ([]byte, error)
}

// Downloads reads the runtime's active downloads. The result reads manifests on demand, using ctx.
func (i *Images) Downloads(ctx context.Context) (*Downloads, error) {
	ctx = inPods(ctx)
	client := contentapi.NewContentClient(i.conn)
	d := &Downloads{active: map[string]ingest{}, there: map[string]int64{}, sources: map[string]map[string][]string{}}
	active, err := client.ListStatuses(ctx, &contentapi.ListStatusesRequest{})
	if err != nil {
		return nil, fmt.Errorf("downloads of the runtime: %w", err)
	}
	for _, s := range active.Statuses {
		// The reference consists of the media type's kind and the digest: "layer-sha256:…".
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

// repositoriesOf returns the source repositories in labels, by registry.
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

// Of returns the progress of an image of the repository, and false if it is unknown: before its
// manifest was received, and if none of its content is being downloaded. Of several images of the
// repository it selects the one with the most active parts.
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

// computeDownload returns the progress of the image with this manifest, and the number of its
// active parts: 0 if it is not a manifest.
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
