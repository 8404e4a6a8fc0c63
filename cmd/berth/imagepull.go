package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/distribution/reference"
	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/explain"
	"berth/internal/runtime/cri"
	"berth/internal/runtime/embedded"
	"berth/internal/runtime/images"
)

func newImagePullCommand(g *globalFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "pull IMAGE...",
		Short: "Pull images",
		Long: `Pull images, with the credentials of the node's Docker configuration (config.json in the agent's root directory, ~/.docker/config.json) if
it has any for their registries.

On a terminal, a progress bar is shown if the runtime is the embedded one.`,
		Example:           "  berth image pull nginx:1.29 registry.example.com/team/app:v2",
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			var named []reference.Named
			for _, arg := range args {
				ref, err := reference.ParseDockerRef(arg)
				if err != nil {
					return fmt.Errorf("%q is not the name of an image: %w", arg, err)
				}
				named = append(named, ref)
			}
			return withImages(g, func(r *imageRuntime) error {
				var errs []error
				for _, ref := range named {
					errs = append(errs, pullImage(cmd.Context(), r, ref, cmd.OutOrStdout(), cmd.ErrOrStderr()))
				}
				return errors.Join(errs...)
			})
		},
	}
}

// pullImage tries the node's credentials for the image in order, or pulls anonymously if there are
// none.
func pullImage(ctx context.Context, r *imageRuntime, ref reference.Named, out, errOut io.Writer) error {
	credentials, err := images.NodeCredentials(images.DockerConfigFiles(r.rootDir), ref)
	if err != nil {
		fmt.Fprintln(errOut, "Warning:", err)
	}
	if len(credentials) == 0 {
		credentials = []*runtimeapi.AuthConfig{nil}
	}
	var errs []error
	for _, c := range credentials {
		if err = pullWith(ctx, r, ref, c, out); err == nil {
			errs = nil
			break
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	img, err := r.cri.Images.ImageStatus(ctx, &runtimeapi.ImageSpec{Image: ref.String()})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "Pulled %s (%s, %s)\n", reference.FamiliarString(ref), shortID(img.GetId()), explain.ByteSize(int64(img.GetSize())))
	return err
}

func pullWith(ctx context.Context, r *imageRuntime, ref reference.Named, auth *runtimeapi.AuthConfig, out io.Writer) error {
	if r.embedded == nil {
		if _, err := r.cri.Images.PullImage(ctx, &runtimeapi.ImageSpec{Image: ref.String()}, auth, nil); err != nil {
			return fmt.Errorf("pull %s: %s", reference.FamiliarString(ref), cri.Message(err))
		}
		return nil
	}
	var c *embedded.Credential
	if auth != nil {
		c = &embedded.Credential{Username: auth.Username, Password: auth.Password, Token: auth.IdentityToken}
	}
	bar := newProgressBar(out, reference.FamiliarString(ref))
	defer bar.clear()
	return r.embedded.Pull(ctx, ref, c, bar.show)
}

func newImageImportCommand(g *globalFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "import FILE...",
		Short: "Import images from archives",
		Long: `Import images from archives of "docker save" or of tools for OCI images, with the names in the archive. "-" is standard input. Archives may be
compressed by gzip or zstd. Images for another platform are rejected.

Images of archives with an OCI layout can also be named by digest. Archives of Docker before version 25 have no digests.

This command requires the embedded runtime.`,
		Example: `  berth image import app.tar
  docker save app:v2 | berth image import -`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withImages(g, func(r *imageRuntime) error {
				if r.embedded == nil {
					return errors.New("the container runtime of this agent does not offer to import images: push them to a registry, or use the runtime's own tools")
				}
				var errs []error
				for _, file := range args {
					errs = append(errs, importImages(cmd.Context(), r, file, cmd.InOrStdin(), cmd.OutOrStdout()))
				}
				return errors.Join(errs...)
			})
		},
	}
}

func importImages(ctx context.Context, r *imageRuntime, file string, in io.Reader, out io.Writer) error {
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return err
		}
		defer f.Close()
		in = f
	}
	bar := newProgressBar(out, file)
	imported, err := r.embedded.Import(ctx, in, bar.show)
	bar.clear()
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	for _, i := range imported {
		digest := i.Digest
		if digest == "" {
			digest = "without a digest: the archive is of docker's old format"
		}
		if _, err := fmt.Fprintf(out, "Imported %s (%s)\n", familiar(i.Name), digest); err != nil {
			return err
		}
	}
	return nil
}

// progressBar redraws one line of a terminal.
type progressBar struct {
	out   io.Writer // nil if it is not a terminal
	title string
	parts map[string]embedded.Progress // by digest or name
	last  string
}

func newProgressBar(out io.Writer, title string) *progressBar {
	b := &progressBar{title: title, parts: map[string]embedded.Progress{}}
	if t := terminalOf(out); t != nil {
		b.out = t
	}
	return b
}

// show records the progress of a part.
func (b *progressBar) show(p embedded.Progress) {
	if b.out == nil || p.Total <= 0 {
		return
	}
	b.parts[cmp.Or(p.Digest, p.Name)] = p
	if line := b.line(); line != b.last {
		b.last = line
		fmt.Fprint(b.out, "\r\x1b[K"+line)
	}
}

// pullBarWidth is the width of the bar in characters.
const pullBarWidth = 24

func (b *progressBar) line() string {
	var done, total int64
	ready, extracting := 0, false
	for _, p := range b.parts {
		d := min(p.Done, p.Total)
		switch p.Event {
		case "complete", "extracted", "already exists", "extracting":
			d = p.Total
			ready++
		}
		extracting = extracting || p.Event == "extracting"
		done += d
		total += p.Total
	}
	full := int(done * pullBarWidth / max(total, 1))
	line := fmt.Sprintf("%s  [%s%s]  %s of %s  %d of %d parts", explain.OneLine(b.title), strings.Repeat("=", full), strings.Repeat(" ", pullBarWidth-full),
		explain.ByteSize(done), explain.ByteSize(total), ready, len(b.parts))
	if extracting {
		line += "  unpacking"
	}
	return line
}

// clear erases the line.
func (b *progressBar) clear() {
	if b.out != nil && b.last != "" {
		fmt.Fprint(b.out, "\r\x1b[K")
		b.last = ""
	}
}
