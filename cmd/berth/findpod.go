package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

func ambiguous(ref podRef, found []podRef) error {
	names := make([]string, len(found))
	for i, f := range found {
		names[i] = f.String()
	}
	return fmt.Errorf("pod %q is in several namespaces: say which one: %s", ref, strings.Join(slices.Compact(names), " or "))
}

// completionTimeout bounds the time that shell completion takes.
const completionTimeout = time.Second

// completePods returns the pod names for shell completion, none without an agent.
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

// completeFixed completes a flag with fixed values.
func completeFixed(cmd *cobra.Command, flag string, values ...string) {
	f := func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return values, cobra.ShellCompDirectiveNoFileComp
	}
	if err := cmd.RegisterFlagCompletionFunc(flag, f); err != nil {
		panic(err) // the flag does not exist: a programming error
	}
}
