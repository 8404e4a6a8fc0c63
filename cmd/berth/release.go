package main

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/spf13/cobra"

	"berth/internal/api/server"
)

// newReleaseCommand releases a pod from quarantine.
func newReleaseCommand(g *globalFlags) *cobra.Command {
	var namespace string
	cmd := &cobra.Command{
		Use:   "release POD",
		Short: "Release a pod from quarantine",
		Long: `Release a pod from quarantine.

An agent that has crashed three times within a day while it synced the same pod puts that pod in quarantine: its containers keep running, and the
agent does not sync it. "berth explain POD" shows the crash. The pod is synced again when its spec changes, or after this command.`,
		Example: `  berth release hello-web`,
		Args:    cobra.ExactArgs(1),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return completePods(cmd.Context(), g), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			c := newClient(g.runDir)
			subject, err := findSubject(cmd.Context(), c, args[0], namespace)
			if err != nil {
				return err
			}
			if subject.Namespace == "" {
				return errors.New("a manifest cannot be released: name its pod")
			}
			resp, err := c.do(cmd.Context(), http.MethodPost, server.PathRelease+"/"+subject.Namespace+"/"+subject.Name, nil, nil)
			if err != nil {
				return err
			}
			if err := resp.Body.Close(); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "Pod %s is released.\n", subject)
			return err
		},
	}
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "namespace of the pod, if its name is ambiguous")
	return cmd
}
