package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	"berth/agent"
	"berth/internal/api/server"
	"berth/internal/explain"
	"berth/internal/runtime/images"
)

func newImagePruneCommand(g *globalFlags) *cobra.Command {
	var o images.PruneOptions
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Remove unused images",
		Long: `Remove unused images immediately.

Images are kept if a container was created from them, running or not; if they are mounted as a volume; if the runtime needs them for every
pod; or if the agent has pulled them ahead for a starting pod. Images that the agent did not pull ("berth image pull" and "berth image import")
are kept unless --all is given. imageMinimumGCAge applies only to the agent's image garbage collection, not to this command.`,
		Example: `  berth image prune --dry-run
  berth image prune --all`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			verdicts, err := pruneImages(cmd.Context(), g, o)
			if err != nil {
				return err
			}
			return printPruned(cmd.OutOrStdout(), verdicts, o)
		},
	}
	cmd.Flags().BoolVar(&o.DryRun, "dry-run", false, "only print the images that would be removed")
	cmd.Flags().BoolVarP(&o.All, "all", "a", false, "also remove images that the agent did not pull")
	return cmd
}

// pruneImages sends the request to the agent, which knows the pulls in progress. Without an agent,
// it prunes the images itself.
func pruneImages(ctx context.Context, g *globalFlags, o images.PruneOptions) (verdicts []images.Verdict, err error) {
	body, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	resp, err := newClient(g.runDir).do(ctx, http.MethodPost, server.PathPruneImages, nil, bytes.NewReader(body))
	if errors.Is(err, errNoAgent) {
		err = withImages(g, func(r *imageRuntime) error {
			verdicts, err = agent.PruneImages(ctx, r.rootDir, r.cri.Images, o)
			return err
		})
		return verdicts, err
	}
	if err != nil {
		return nil, err
	}
	err = errors.Join(json.NewDecoder(resp.Body).Decode(&verdicts), resp.Body.Close())
	if err != nil {
		return nil, fmt.Errorf("read the agent's answer: %w", err)
	}
	return verdicts, nil
}

// printPruned prints the result for each image, in order of removal, and the total.
func printPruned(out io.Writer, verdicts []images.Verdict, o images.PruneOptions) error {
	rows := [][]string{{"IMAGE", "ID", "SIZE", ""}}
	var gone, failed int
	var bytes uint64
	for i := range verdicts {
		v := &verdicts[i]
		rows = append(rows, []string{namesOf(v), shortID(v.ID), explain.ByteSize(int64(v.Size)), becameOf(v, o)})
		switch {
		case v.Error != "":
			failed++
		case v.Fate == images.Unused:
			gone++
			bytes += v.Size
		}
	}
	var t table
	lines := t.lines(rows)
	sum := fmt.Sprintf("Freed %s: %d of %d images.", explain.ByteSize(int64(bytes)), gone, len(verdicts))
	if o.DryRun {
		sum = fmt.Sprintf("Would free %s: %d of %d images.", explain.ByteSize(int64(bytes)), gone, len(verdicts))
	}
	for _, l := range append(lines, sum) {
		if _, err := fmt.Fprintln(out, l); err != nil {
			return err
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d images could not be removed", failed, len(verdicts))
	}
	return nil
}

// namesOf returns all names of an image in their short form.
func namesOf(v *images.Verdict) string {
	var names []string
	for _, n := range v.Names {
		names = append(names, familiar(n))
	}
	if len(names) == 0 {
		return "<none>"
	}
	return explain.OneLine(strings.Join(names, ","))
}

// usersShown is the maximum number of listed users of an image.
const usersShown = 3

// becameOf describes the result for an image and the reason.
func becameOf(v *images.Verdict, o images.PruneOptions) string {
	switch v.Fate {
	case images.Unused:
		switch {
		case v.Error != "":
			return "not removed: " + explain.OneLine(v.Error)
		case o.DryRun:
			return "would be removed"
		}
		return "removed"
	case images.InUse:
		users := strings.Join(v.Users[:min(len(v.Users), usersShown)], ", ")
		if more := len(v.Users) - usersShown; more > 0 {
			users += fmt.Sprintf(" and %d more", more)
		}
		return "used by " + explain.OneLine(users)
	case images.Pinned:
		return "kept: the runtime needs it for every pod"
	case images.LookedAhead:
		return "kept: a pod that starts will need it"
	case images.NotPulled:
		return "kept: no agent pulled it (--all removes it)"
	}
	return "kept: " + explain.OneLine(string(v.Fate))
}
