package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"

	"berth/internal/source/manifest"
)

// findPod returns the one pod that the argument names.
func findPod(ctx context.Context, c *client, arg, namespace string) (*v1.Pod, error) {
	ref, err := parsePodRef(arg, namespace)
	if err != nil {
		return nil, err
	}
	pods, err := c.pods(ctx)
	if err != nil {
		return nil, err
	}
	var found []*v1.Pod
	for _, p := range pods {
		if ref.matches(p.Namespace, p.Name) {
			found = append(found, p)
		}
	}
	if len(found) == 0 {
		return nil, explainMissing(ctx, c, notFound(ref, refsOf(pods)), ref)
	}
	if severalNamespaces(found) {
		return nil, ambiguous(ref, refsOf(found))
	}
	// Of two incarnations the one that goes on.
	if i := slices.IndexFunc(found, func(p *v1.Pod) bool { return p.DeletionTimestamp == nil }); i > 0 {
		return found[i], nil
	}
	return found[0], nil
}

// explainMissing returns why there are no pods of these names, if it is that their manifests are
// refused; else the error.
func explainMissing(ctx context.Context, c *client, missing error, refs ...podRef) error {
	problems, err := c.problems(ctx)
	if err != nil {
		return errors.Join(missing, err)
	}
	var lines []string
	for _, p := range problems {
		if p.Severity == manifest.SeverityError && slices.ContainsFunc(refs, func(r podRef) bool { return isManifestOf(p, r) }) {
			lines = append(lines, fmt.Sprintf("%s (%s)", problemLine(p), p.Path))
		}
	}
	if len(lines) == 0 {
		return missing
	}
	return fmt.Errorf("%w: its manifest is refused: %s", missing, strings.Join(lines, "; "))
}

// isManifestOf reports whether the problem is of the pod's manifest: the pod is named in it, or by
// the name of the file, with or without what that ends with.
func isManifestOf(p manifest.Problem, r podRef) bool {
	file := filepath.Base(p.Path)
	return r.matches(p.Namespace, p.Name) || r.Name == file || r.Name == strings.TrimSuffix(file, filepath.Ext(file))
}

func ambiguous(ref podRef, found []podRef) error {
	names := make([]string, len(found))
	for i, f := range found {
		names[i] = f.String()
	}
	return fmt.Errorf("pod %q is in several namespaces: say which one: %s", ref, strings.Join(slices.Compact(names), " or "))
}

// completionTimeout is how long the shell may wait for names.
const completionTimeout = time.Second

// completePods returns the names of the pods for the shell, nothing when there is no agent.
func completePods(ctx context.Context, g *globalFlags) []string {
	ctx, cancel := context.WithTimeout(ctx, completionTimeout)
	defer cancel()
	pods, err := newClient(g.runDir).pods(ctx)
	if err != nil {
		cobra.CompDebugln(err.Error(), false)
		return nil
	}
	several := severalNamespaces(pods)
	names := make([]string, len(pods))
	for i, p := range pods {
		names[i] = p.Name
		if several {
			names[i] = p.Namespace + "/" + p.Name
		}
	}
	return names
}

// completePod completes the first argument with the names of pods; what follows is completed as
// after says.
func completePod(g *globalFlags, after cobra.ShellCompDirective) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return completePods(cmd.Context(), g), cobra.ShellCompDirectiveNoFileComp
		}
		return nil, after
	}
}

// completeContainer completes the flag --container with the containers of the pod that was named
// before it.
func completeContainer(cmd *cobra.Command, g *globalFlags) {
	f := func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
		defer cancel()
		p, err := findPod(ctx, newClient(g.runDir), args[0], cmd.Flag("namespace").Value.String())
		if err != nil {
			cobra.CompDebugln(err.Error(), false)
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return containerNames(p), cobra.ShellCompDirectiveNoFileComp
	}
	if err := cmd.RegisterFlagCompletionFunc("container", f); err != nil {
		panic(err) // the flag does not exist: a mistake in this program
	}
}

// completeFixed completes a flag with the values that it can have.
func completeFixed(cmd *cobra.Command, flag string, values ...string) {
	f := func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return values, cobra.ShellCompDirectiveNoFileComp
	}
	if err := cmd.RegisterFlagCompletionFunc(flag, f); err != nil {
		panic(err) // the flag does not exist: a mistake in this program
	}
}
