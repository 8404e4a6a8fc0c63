package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/distribution/reference"
	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// image is one image, as the commands print it.
type image struct {
	ID string `json:"id"`
	// Names are those with a tag, Digests those with a digest.
	Names   []string `json:"names"`
	Digests []string `json:"digests"`
	Size    uint64   `json:"size"` // bytes
	// Pinned: the runtime needs it for every pod, and it is not removed.
	Pinned bool `json:"pinned"`
	// User is the one that the image's programs run as, a name or an id; "" when it names none.
	User string `json:"user,omitempty"`
	// Config is the image's own configuration (OCI image specification), when the runtime tells it.
	Config json.RawMessage `json:"config,omitempty"`
}

func newImage(from *runtimeapi.Image) image {
	i := image{
		ID: from.Id, Names: slices.Sorted(slices.Values(from.RepoTags)), Digests: slices.Sorted(slices.Values(from.RepoDigests)),
		Size: from.Size, Pinned: from.Pinned, User: from.Username,
	}
	if from.Uid != nil {
		i.User = fmt.Sprint(from.Uid.Value)
	}
	return i
}

func newImageListCommand(g *globalFlags) *cobra.Command {
	var f imageListFlags
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List the images of this node",
		Example: `  berth image ls
  berth image ls --digests
  berth image ls -o json`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.output != "" && f.output != "json" {
				return fmt.Errorf("--output: %q is not a format: choose json", f.output)
			}
			return withImages(g, func(r *imageRuntime) error { return listImages(cmd.Context(), r, f, cmd.OutOrStdout()) })
		},
	}
	cmd.Flags().StringVarP(&f.output, "output", "o", "", "json")
	cmd.Flags().BoolVar(&f.digests, "digests", false, "show the digest of each image")
	completeFixed(cmd, "output", "json")
	return cmd
}

type imageListFlags struct {
	output  string
	digests bool
}

func listImages(ctx context.Context, r *imageRuntime, f imageListFlags, out io.Writer) error {
	all, err := r.ListImages(ctx)
	if err != nil {
		return err
	}
	list := []image{}
	for _, img := range all {
		list = append(list, newImage(img))
	}
	slices.SortFunc(list, func(a, b image) int {
		return cmp.Or(slices.Compare(a.Names, b.Names), slices.Compare(a.Digests, b.Digests), cmp.Compare(a.ID, b.ID))
	})
	if f.output == "json" {
		return printJSON(out, list)
	}
	rows := imageRows(list)
	if f.digests {
		rows = imageDigestRows(list)
	}
	var t table
	for _, l := range t.lines(rows) {
		if _, err := fmt.Fprintln(out, l); err != nil {
			return err
		}
	}
	return nil
}

// imageRows has a line for each name of each image; an image without one is shown by what else it
// has.
func imageRows(list []image) [][]string {
	rows := [][]string{{"IMAGE", "ID", "SIZE", ""}}
	for _, i := range list {
		names := slices.Clone(i.Names)
		if len(names) == 0 {
			names = i.Digests
		}
		if len(names) == 0 {
			names = []string{"<none>"}
		}
		note := ""
		if i.Pinned {
			note = "pinned"
		}
		for _, name := range names {
			rows = append(rows, []string{oneLine(familiar(name)), shortID(i.ID), byteSize(int64(i.Size)), note})
		}
	}
	return rows
}

// imageDigestRows has the columns of imageRows, and the digest that an image has in the repository
// of each of its names. A digest in a repository without tags has a line of its own.
func imageDigestRows(list []image) [][]string {
	rows := [][]string{{"IMAGE", "DIGEST", "ID", "SIZE", ""}}
	for _, i := range list {
		digests := map[string][]string{} // by repository
		var untagged []string
		for _, d := range i.Digests {
			repository, digest, _ := strings.Cut(d, "@")
			digests[repository] = append(digests[repository], digest)
		}
		for _, repository := range slices.Sorted(maps.Keys(digests)) {
			if !slices.ContainsFunc(i.Names, func(name string) bool { return repositoryOf(name) == repository }) {
				untagged = append(untagged, repository)
			}
		}
		names := slices.Concat(i.Names, untagged)
		if len(names) == 0 {
			names = []string{"<none>"}
		}
		for _, name := range names {
			row := imageRows([]image{{ID: i.ID, Names: []string{name}, Size: i.Size, Pinned: i.Pinned}})[1]
			under := digests[repositoryOf(name)]
			if len(under) == 0 {
				under = []string{"<none>"}
			}
			for _, digest := range under {
				rows = append(rows, slices.Insert(slices.Clone(row), 1, digest))
			}
		}
	}
	return rows
}

// repositoryOf returns the name without tag and digest.
func repositoryOf(name string) string {
	ref, err := reference.ParseNormalizedNamed(name)
	if err != nil {
		return name
	}
	return reference.TrimNamed(ref).String()
}

// familiar returns the name as people write it: without the registry and the folder that are the
// default ones.
func familiar(name string) string {
	ref, err := reference.ParseNormalizedNamed(name)
	if err != nil {
		return name
	}
	return reference.FamiliarString(ref)
}

// shortID is what tells images apart.
func shortID(id string) string {
	id = strings.TrimPrefix(id, "sha256:")
	return id[:min(12, len(id))]
}

// byteSize returns a number of bytes in the largest unit that leaves a digit before the point.
func byteSize(n int64) string {
	if n < 1<<10 {
		return fmt.Sprintf("%d B", n)
	}
	v, unit := float64(n), ""
	for _, unit = range []string{"KiB", "MiB", "GiB", "TiB"} {
		if v /= 1 << 10; v < 1000 {
			break
		}
	}
	return fmt.Sprintf("%.1f %s", v, unit)
}
