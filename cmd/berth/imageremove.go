package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"berth/internal/pod"
)

func newImageInspectCommand(g *globalFlags) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:     "inspect IMAGE...",
		Short:   "Print the runtime's status of images as JSON",
		Example: "  berth image inspect nginx:1.29",
		Args:    cobra.MinimumNArgs(1),
		ValidArgsFunction: func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			return completeImages(cmd.Context(), g), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if output != "json" {
				return fmt.Errorf("--output: %q is not a format: choose json", output)
			}
			return withImages(g, func(r *imageRuntime) error { return inspectImages(cmd.Context(), r, args, cmd.OutOrStdout()) })
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "json", "json")
	completeFixed(cmd, "output", "json")
	return cmd
}

// inspectImages prints the existing images of the names. The error names the others.
func inspectImages(ctx context.Context, r *imageRuntime, names []string, out io.Writer) error {
	found := []image{}
	var errs []error
	for _, name := range names {
		img, info, err := r.cri.Images.InspectImage(ctx, name)
		if err == nil && img == nil {
			err = fmt.Errorf("image %q is not on this node", name)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		i := newImage(img)
		var more struct {
			ImageSpec json.RawMessage `json:"imageSpec"`
		}
		if json.Unmarshal([]byte(info["info"]), &more) == nil { // only containerd reports it, in this form
			i.Config = more.ImageSpec
		}
		found = append(found, i)
	}
	return errors.Join(append([]error{printJSON(out, found)}, errs...)...)
}

func newImageRemoveCommand(g *globalFlags) *cobra.Command {
	var f imageRemoveFlags
	cmd := &cobra.Command{
		Use:   "rm IMAGE...",
		Short: "Remove images",
		Long: `Remove images, each with all its names.

Images that a container was created from, or that are mounted as a volume, are rejected unless --force is given: running containers are not
affected, but need the image again when they restart. The image that the runtime needs for every pod is always rejected.`,
		Example: "  berth image rm nginx:1.28",
		Args:    cobra.MinimumNArgs(1),
		ValidArgsFunction: func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			return completeImages(cmd.Context(), g), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return withImages(g, func(r *imageRuntime) error { return f.run(cmd.Context(), r, args, cmd.OutOrStdout()) })
		},
	}
	cmd.Flags().BoolVarP(&f.force, "force", "f", false, "also remove images that containers use")
	return cmd
}

type imageRemoveFlags struct{ force bool }

// run removes images and continues after a failure.
func (f imageRemoveFlags) run(ctx context.Context, r *imageRuntime, names []string, out io.Writer) error {
	users, err := r.cri.Images.ImageUsers(ctx, func(pod.UID) bool { return true })
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range names {
		img, _, err := r.cri.Images.InspectImage(ctx, name)
		switch {
		case err != nil:
		case img == nil:
			err = fmt.Errorf("image %q is not on this node", name)
		case img.Pinned:
			err = fmt.Errorf("image %q is pinned: the runtime needs it for every pod", name)
		case len(users[img.Id]) > 0 && !f.force:
			err = fmt.Errorf("image %q is used by %s: end them first, or use --force", name, strings.Join(users[img.Id], ", "))
		default:
			if err = r.cri.Images.RemoveImage(ctx, img.Id); err == nil {
				_, err = fmt.Fprintf(out, "Removed %s\n", familiar(name))
			}
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
