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

	"berth/internal/explain"
)

// image is the output format of one image.
type image struct {
	ID string `json:"id"`
	// Names have a tag, Digests a digest.
	Names   []string `json:"names"`
	Digests []string `json:"digests"`
	Size    uint64   `json:"size"` // bytes
	// Pinned images are needed by the runtime for every pod and are not removed.
	Pinned bool `json:"pinned"`
	// User is the name or ID that the image's processes run as, or "" if the image sets none.
	User string `json:"user,omitempty"`
	// Config is the image configuration (OCI image specification), if the runtime reports it.
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
	all, err := r.cri.Images.ListImages(ctx)
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

// imageRows returns a row for each name of each image. An image without a name is listed by its
// digest or ID.
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
			rows = append(rows, []string{explain.OneLine(familiar(name)), shortID(i.ID), explain.ByteSize(int64(i.Size)), note})
		}
	}
	return rows
}

// imageDigestRows returns the columns of imageRows and the image's digest in the repository of each
// name. A digest in a repository without tags has its own row.
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

func repositoryOf(name string) string {
	ref, err := reference.ParseNormalizedNamed(name)
	if err != nil {
		return name
	}
	return reference.TrimNamed(ref).String()
}

// familiar returns the short form of the name, without the default registry and path.
func familiar(name string) string {
	ref, err := reference.ParseNormalizedNamed(name)
	if err != nil {
		return name
	}
	return reference.FamiliarString(ref)
}

func shortID(id string) string {
	id = strings.TrimPrefix(id, "sha256:")
	return id[:min(12, len(id))]
}
