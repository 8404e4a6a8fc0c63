package main

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/spf13/cobra"

	"berth/internal/api/server"
)

// newReleaseCommand lets go of a pod that the agent has set aside.
func newReleaseCommand(g *globalFlags) *cobra.Command {
	var namespace string
	cmd := &cobra.Command{
		Use:   "release POD",
		Short: "Let the agent touch a pod again that made it crash",
		Long: `Let the agent touch a pod again that it has set aside.

An agent that crashed three times in a day with the same pod in hand leaves that pod alone: its containers go on, and nothing is done for it.
"berth explain POD" shows the crash. The pod is touched again when its spec changes, or by this command.`,
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
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "namespace of the pod, when its name is not enough")
	return cmd
}
