package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"berth/internal/api/server"
	"berth/internal/config"
	"berth/internal/explain"
)

func newConfigCommand(g *globalFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Inspect the kubelet configuration",
		Args:  cobra.NoArgs,
	}
	cmd.AddCommand(newConfigPrintCommand(g))
	return cmd
}

// configPrint holds the flags of `berth config print`, without those of the kubelet.
type configPrint struct {
	output  string
	changed bool
}

func newConfigPrintCommand(g *globalFlags) *cobra.Command {
	var f configPrint
	flags := config.NewFlags()
	cmd := &cobra.Command{
		Use:   "print [KUBELET FLAGS]",
		Short: "Print the effective configuration and its sources",
		Long: `Print each field of the KubeletConfiguration and each flag that is not a field: its value, and the file or flag that set it.

Without kubelet flags, print the configuration of the running agent. With kubelet flags, or with environment variables for them and no
running agent, print the configuration that an agent would have if it were started with them; nothing is started. Secrets in staticPodURL
and staticPodURLHeader are not printed.`,
		Example: `  berth config print --changed
  berth config print --config /var/lib/kubelet/config.yaml --config-dir /etc/kubelet.d
  berth config print --max-pods 50 -o yaml`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			settings, err := f.settings(cmd.Context(), g, flags, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			return f.print(settings, cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVarP(&f.output, "output", "o", "table", "table, yaml (a KubeletConfiguration, without the flags that are not fields) or json")
	cmd.Flags().BoolVar(&f.changed, "changed", false, "omit defaults")
	cmd.Flags().SetNormalizeFunc(dashes)
	for _, k := range flags.All() {
		if k.Name == "version" {
			continue
		}
		addKubeletFlag(cmd.Flags(), k).Hidden = true // berth kubelet documents them
	}
	return cmd
}

// settings returns the settings of the running agent, or those that result from the given flags.
func (f *configPrint) settings(ctx context.Context, g *globalFlags, flags *config.Flags, errOut io.Writer) ([]server.Setting, error) {
	given, environment := false, false
	for _, k := range flags.All() {
		given = given || k.IsSet() && !k.FromVariable()
		environment = environment || k.FromVariable()
	}
	if !given {
		var settings []server.Setting
		err := newClient(g.runDir).getJSON(ctx, server.PathSettings, nil, &settings)
		if !environment || !errors.Is(err, errNoAgent) {
			return settings, err
		}
	}
	k, err := config.Load(flags)
	if err != nil {
		return nil, refused(err)
	}
	for _, w := range k.Warnings {
		fmt.Fprintf(errOut, "Warning: %s\n", w)
	}
	fields, err := k.Settings()
	var out []server.Setting
	for _, field := range fields {
		out = append(out, server.Setting{Path: field.Path, Value: field.Value, From: field.Origin.String()})
	}
	return out, err
}

func (f *configPrint) print(settings []server.Setting, out io.Writer) error {
	if f.changed {
		var some []server.Setting
		for _, s := range settings {
			if s.From != string(config.FromDefault) {
				some = append(some, s)
			}
		}
		settings = some
	}
	switch f.output {
	case "json":
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		e.SetEscapeHTML(false)
		return e.Encode(settings)
	case "yaml":
		text, err := yaml.Marshal(config.Document(valuesOf(settings)))
		if err != nil {
			return err
		}
		_, err = out.Write(text)
		return err
	case "table":
		rows := [][]string{{"FIELD", "VALUE", "FROM"}}
		for _, s := range settings {
			value, err := json.Marshal(s.Value)
			if err != nil {
				return err
			}
			text := string(value)
			if plain, ok := s.Value.(string); ok {
				text = explain.OneLine(plain)
			}
			rows = append(rows, []string{s.Path, text, s.From})
		}
		for _, line := range new(table).lines(rows) {
			if _, err := fmt.Fprintln(out, line); err != nil {
				return err
			}
		}
		return nil
	}
	return fmt.Errorf("--output %q: must be table, yaml or json", f.output)
}

func valuesOf(settings []server.Setting) map[string]any {
	out := map[string]any{}
	for _, s := range settings {
		out[s.Path] = s.Value
	}
	return out
}
