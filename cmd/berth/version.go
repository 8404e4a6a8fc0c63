package main

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"berth/internal/api/server"
)

// version is set by the linker (-X main.version=…).
var version = "dev"

// build is the build information of the binary.
type build struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Modified bool   `json:"modified,omitempty"` // built from a modified work tree
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func readBuild() build {
	b := build{Version: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Revision = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	return b
}

func (b build) String() string {
	rev := ""
	if b.Revision != "" {
		rev = b.Revision[:min(12, len(b.Revision))]
		if b.Modified {
			rev += ", modified"
		}
		rev += ", "
	}
	return fmt.Sprintf("%s (%s%s, %s)", b.Version, rev, b.Go, b.Platform)
}

func newVersionCommand(g *globalFlags) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:               "version",
		Short:             "Print the versions of berth, the agent and the runtime",
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			own := readBuild()
			agent, err := newClient(g.runDir).version(cmd.Context())
			running := err == nil
			if err != nil && !errors.Is(err, errNoAgent) {
				return err
			}
			out := cmd.OutOrStdout()
			switch output {
			case "json":
				v := struct {
					Berth build           `json:"berth"`
					Agent *server.Version `json:"agent,omitempty"`
				}{Berth: own}
				if running {
					v.Agent = &agent
				}
				return printJSON(out, v)
			case "":
			default:
				return fmt.Errorf("--output: %q is not a format: choose json", output)
			}
			lines := [][]string{{"berth", own.String()}}
			if running {
				lines = append(lines,
					[]string{"agent", fmt.Sprintf("%s on node %s, process %d", agent.Version, agent.NodeName, agent.PID)},
					[]string{"runtime", runtimeText(agent)})
			} else {
				lines = append(lines, []string{"agent", "not running on " + g.runDir})
			}
			var t table
			for _, l := range t.lines(lines) {
				if _, err := fmt.Fprintln(out, l); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "json")
	completeFixed(cmd, "output", "json")
	return cmd
}

func runtimeText(v server.Version) string {
	if v.RuntimeName == "" {
		return "has not answered yet on " + v.RuntimeEndpoint
	}
	return fmt.Sprintf("%s %s on %s", v.RuntimeName, v.RuntimeVersion, v.RuntimeEndpoint)
}
