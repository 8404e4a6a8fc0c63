package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
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
	var output string
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List the images of this node",
		Example: `  berth image ls
  berth image ls -o json`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "" && output != "json" {
				return fmt.Errorf("--output: %q is not a format: choose json", output)
			}
			return withImages(g, func(r *imageRuntime) error { return listImages(cmd.Context(), r, output, cmd.OutOrStdout()) })
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "json")
	completeFixed(cmd, "output", "json")
	return cmd
}

func listImages(ctx context.Context, r *imageRuntime, output string, out io.Writer) error {
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
	if output == "json" {
		return printJSON(out, list)
	}
	var t table
	for _, l := range t.lines(imageRows(list)) {
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
