package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/runtime/embedded"
)

func TestImageRows(t *testing.T) {
	const digest = "@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	got := imageRows([]image{
		{ID: "sha256:0123456789abcdef", Names: []string{"docker.io/library/nginx:1", "r.example/web:1"}, Size: 3 << 20},
		{ID: "fedcba", Digests: []string{"docker.io/library/old" + digest}, Size: 1023},
		{ID: "sha256:1", Size: 999 << 30, Pinned: true},
	})
	want := [][]string{
		{"IMAGE", "ID", "SIZE", ""},
		{"nginx:1", "0123456789ab", "3.0 MiB", ""},
		{"r.example/web:1", "0123456789ab", "3.0 MiB", ""},
		{"old" + digest, "fedcba", "1023 B", ""},
		{"<none>", "1", "999.0 GiB", "pinned"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestImageDigestRows(t *testing.T) {
	const one, two = "sha256:1111111111111111111111111111111111111111111111111111111111111111", "sha256:2222222222222222222222222222222222222222222222222222222222222222"
	got := imageDigestRows([]image{
		{ID: "sha256:a", Names: []string{"docker.io/library/app:1", "docker.io/library/app:2", "r.example/old:1"}, Digests: []string{"docker.io/library/app@" + one, "r.example/b@" + two}},
		{ID: "sha256:b", Digests: []string{"r.example/c@" + one, "r.example/c@" + two}, Pinned: true},
		{ID: "sha256:c"},
	})
	want := [][]string{
		{"IMAGE", "DIGEST", "ID", "SIZE", ""},
		{"app:1", one, "a", "0 B", ""},
		{"app:2", one, "a", "0 B", ""},
		{"r.example/old:1", "<none>", "a", "0 B", ""},
		{"r.example/b", two, "a", "0 B", ""},
		{"r.example/c", one, "b", "0 B", "pinned"},
		{"r.example/c", two, "b", "0 B", "pinned"},
		{"<none>", "<none>", "c", "0 B", ""},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestProgressBar(t *testing.T) {
	b := newProgressBar(nil, "nginx:1")
	for _, p := range []embedded.Progress{
		{Event: "waiting", Name: "layer-a", Digest: "a", Total: 2 << 20},
		{Event: "downloading", Name: "layer-b", Digest: "b", Done: 1 << 20, Total: 2 << 20},
		{Event: "complete", Name: "config", Digest: "c", Done: 10, Total: 10},
	} {
		b.parts[p.Digest] = p
	}
	if got, want := b.line(), "nginx:1  [======                  ]  1.0 MiB of 4.0 MiB  1 of 3 parts"; got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	for d, p := range b.parts {
		p.Event, p.Done = "extracting", 1
		b.parts[d] = p
	}
	if got, want := b.line(), "nginx:1  [========================]  4.0 MiB of 4.0 MiB  3 of 3 parts  unpacking"; got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}
