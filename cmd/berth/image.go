package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/spf13/cobra"

	"berth/agent"
	"berth/internal/runtime/cri"
	"berth/internal/runtime/embedded"
)

func newImageCommand(g *globalFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "image",
		Short: "Manage images",
		Long: `List, pull, import, inspect and remove the images of this node.

The commands use the container runtime of the agent with this run directory, also if that agent has exited. Only "prune" is executed by
the agent if it is running. Pods can use every image that was pulled or imported here, regardless of the credentials that its registry requires.`,
		Args: cobra.NoArgs,
	}
	cmd.AddCommand(newImageListCommand(g), newImagePullCommand(g), newImageImportCommand(g), newImageInspectCommand(g), newImageRemoveCommand(g), newImagePruneCommand(g))
	return cmd
}

type imageRuntime struct {
	cri     *cri.Client
	rootDir string
	// embedded is nil with a foreign runtime.
	embedded *embedded.Images
}

// openImageRuntime connects to the runtime of the last agent in the run directory.
func openImageRuntime(g *globalFlags) (*imageRuntime, error) {
	runDir, err := filepath.Abs(g.runDir)
	if err != nil {
		return nil, err
	}
	cfg, err := agent.LastConfig(runDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf(`%w on %s, so there is no container runtime to ask: start one with "berth run DIR", or name its --run-dir`, errNoAgent, g.runDir)
	}
	if err != nil {
		return nil, err
	}
	r := &imageRuntime{rootDir: cfg.RootDir}
	endpoint := cfg.RuntimeEndpoint
	if endpoint == "" {
		own, err := embedded.New(embedded.Config{Root: cfg.RootDir, RunDir: runDir})
		if err != nil {
			return nil, err
		}
		endpoint = own.Endpoint()
		if r.embedded, err = embedded.OpenImages(cfg.RootDir, runDir); err != nil {
			return nil, err
		}
	}
	if r.cri, err = cri.New(cri.Config{Endpoint: endpoint}); err != nil {
		return nil, errors.Join(err, r.closeEmbedded())
	}
	return r, nil
}

func (r *imageRuntime) closeEmbedded() error {
	if r.embedded == nil {
		return nil
	}
	return r.embedded.Close()
}

func withImages(g *globalFlags, f func(*imageRuntime) error) error {
	r, err := openImageRuntime(g)
	if err != nil {
		return err
	}
	return errors.Join(f(r), r.cri.Close(), r.closeEmbedded())
}

// completeImages returns the names of the local images for shell completion.
func completeImages(ctx context.Context, g *globalFlags) []string {
	var names []string
	_ = withImages(g, func(r *imageRuntime) error { // without a runtime nothing is completed
		all, err := r.cri.Images.ListImages(ctx)
		for _, img := range all {
			names = append(names, img.RepoTags...)
		}
		return err
	})
	return names
}
