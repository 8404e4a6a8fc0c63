package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth/internal/api/server"
	"berth/internal/explain"
	"berth/internal/pod"
	"berth/internal/record/journal"
)

func newExplainCommand(g *globalFlags) *cobra.Command {
	var namespace, container, output, kubeconfig string
	var all bool
	cmd := &cobra.Command{
		Use:   "explain POD|MANIFEST",
		Short: "Explain the state of a pod and what happens next",
		Long: `Explain the state of a pod on one screen: its status and the reason, the next event and its time, the start, the last log lines of a
failed container, and the last decisions of the agent about it. Repeated decisions are shown once, with a count.

With --all, also show the duration of each step of the start, how its containers exited with their last log lines, and all decisions, oldest
first: time, component, reason, duration and error. On a terminal, $PAGER or less shows the output.

Name a rejected manifest by its file. Deleted pods can be explained for some time, also after restarts of the agent.

With --kubeconfig, send the request to the Kubernetes API of the machine instead of the agent's socket, which only root can use. The user
needs the permission to get pods/explain. POD is in the namespace of the kubeconfig.`,
		Example: `  berth explain hello-web
  berth explain hello-web --all -c server
  berth explain broken.yaml
  berth explain hello-web --kubeconfig ci.kubeconfig`,
		Args: cobra.ExactArgs(1),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return completePods(cmd.Context(), g), cobra.ShellCompDirectiveDefault
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if output != "" && output != "json" {
				return fmt.Errorf("--output: %q is not a format: choose json", output)
			}
			var e explain.Report
			var err error
			if kubeconfig == "" && filepath.Base(os.Args[0]) == pluginName {
				kubeconfig = os.Getenv("KUBECONFIG")
			}
			if kubeconfig != "" {
				e, err = explainByAPI(cmd.Context(), kubeconfig, args[0], namespace)
			} else {
				e, err = explainBySocket(cmd.Context(), newClient(g.runDir), args[0], namespace)
			}
			if err != nil {
				return err
			}
			if container != "" {
				if e, err = ofContainer(e, container); err != nil {
					return err
				}
			}
			if output == "json" {
				return printJSON(cmd.OutOrStdout(), e)
			}
			now := time.Now()
			a := explain.Explain(e, now, time.Local)
			if !all {
				return printLines(cmd.OutOrStdout(), screenLines(a, now, time.Local, widthOf(cmd.OutOrStdout())))
			}
			return paged(cmd.OutOrStdout(), func(w io.Writer) error { return printLines(w, allLines(a, now, time.Local)) })
		},
	}
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "namespace of the pod, if its name is ambiguous")
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig", "", "use the Kubernetes API of this file instead of the agent's socket (default, as a kubectl plugin: KUBECONFIG)")
	if err := cmd.Flags().SetAnnotation("kubeconfig", withoutVariable, []string{"that of a kubelet"}); err != nil {
		panic(err) // the flag does not exist: a programming error
	}
	cmd.Flags().StringVarP(&container, "container", "c", "", "hide entries of other containers")
	cmd.Flags().BoolVar(&all, "all", false, "show all: each step of the start, container exits, all decisions; in a pager on a terminal")
	cmd.Flags().StringVarP(&output, "output", "o", "", "json")
	completeFixed(cmd, "output", "json")
	return cmd
}

// explainBySocket requests the explanation from the agent of this machine.
func explainBySocket(ctx context.Context, c *client, arg, namespace string) (explain.Report, error) {
	subject, err := findSubject(ctx, c, arg, namespace)
	if err != nil {
		return explain.Report{}, err
	}
	return fetchExplanation(ctx, c, subject)
}

// findSubject returns the subject that the argument names: a manifest file or a pod, which may be
// deleted. A static pod of a cluster member may be named without the node name suffix.
func findSubject(ctx context.Context, c *client, arg, namespace string) (journal.Subject, error) {
	subjects, err := c.subjects(ctx)
	if err != nil {
		return journal.Subject{}, err
	}
	found, err := chooseSubject(subjects, arg, namespace)
	if !errors.Is(err, errNotFound) {
		return found, err
	}
	v, verr := c.version(ctx)
	if verr != nil {
		return journal.Subject{}, errors.Join(err, verr)
	}
	if found, ferr := chooseSubject(subjects, arg+"-"+v.NodeName, namespace); ferr == nil {
		return found, nil
	}
	return journal.Subject{}, err
}

func chooseSubject(subjects []journal.Subject, arg, namespace string) (journal.Subject, error) {
	for _, s := range subjects {
		if s.Namespace == "" && namespace == "" && (s.Name == arg || s.Name == filepath.Base(arg)) {
			return s, nil
		}
	}
	ref, err := parsePodRef(arg, namespace)
	if err != nil {
		return journal.Subject{}, err
	}
	var known, found []podRef
	for _, s := range subjects {
		r := podRef{s.Namespace, s.Name}
		known = append(known, r)
		if r.Namespace != "" && ref.matches(r.Namespace, r.Name) && !slices.Contains(found, r) {
			found = append(found, r)
		}
	}
	switch len(found) {
	case 0:
		return journal.Subject{}, notFound(ref, known)
	case 1:
		return journal.Subject{Namespace: found[0].Namespace, Name: found[0].Name}, nil
	default:
		return journal.Subject{}, ambiguous(ref, found)
	}
}

// fetchExplanation requests the explanation of a pod, or of a manifest if the subject has no
// namespace.
func fetchExplanation(ctx context.Context, c *client, s journal.Subject) (explain.Report, error) {
	path, query := server.PathExplain+"/"+s.Namespace+"/"+s.Name, url.Values(nil)
	if s.Namespace == "" {
		path, query = server.PathExplain, url.Values{"subject": {s.Name}}
	}
	var e explain.Report
	err := c.getJSON(ctx, path, query, &e)
	return e, err
}

// ofContainer removes what concerns other containers.
func ofContainer(e explain.Report, name string) (explain.Report, error) {
	var known []string
	others := func(container string) bool {
		if container != "" && !slices.Contains(known, container) {
			known = append(known, container)
		}
		return container != "" && container != name
	}
	for _, p := range e.Pods {
		for c := range pod.Containers(&p.Spec) {
			others(c.Name)
		}
		for _, c := range p.Spec.EphemeralContainers {
			others(c.Name)
		}
	}
	e.Waits = slices.DeleteFunc(e.Waits, func(w explain.Wait) bool { return others(w.Container) })
	for i := range e.Stories {
		s := &e.Stories[i]
		s.Milestones = slices.DeleteFunc(s.Milestones, func(m journal.Milestone) bool { return others(m.Container) })
		s.Ends = slices.DeleteFunc(s.Ends, func(e journal.End) bool { return others(e.Container) })
		s.Next = slices.DeleteFunc(s.Next, func(n journal.Next) bool { return others(n.Container) })
		s.Entries = slices.DeleteFunc(s.Entries, func(e journal.Entry) bool { return others(e.Container) })
	}
	if !slices.Contains(known, name) {
		slices.Sort(known)
		return e, fmt.Errorf("container %q %w; the pod has %s", name, errNotFound, strings.Join(known, ", "))
	}
	return e, nil
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
