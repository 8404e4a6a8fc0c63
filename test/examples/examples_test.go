package examples

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"berth/internal/pod"
	"berth/internal/record/journal"
	"berth/internal/source/podconfig"
	"berth/internal/sync/admission"
)

// TestExamples loads each folder of examples/ as the agent would: no manifest of it has a problem,
// and no pod is refused.
func TestExamples(t *testing.T) {
	folders, err := os.ReadDir("../../examples")
	if err != nil {
		t.Fatal(err)
	}
	for _, folder := range folders {
		t.Run(folder.Name(), func(t *testing.T) {
			log := slog.New(slog.DiscardHandler)
			config, err := podconfig.New(podconfig.Config{
				NodeName: "node", Log: log, Journal: journal.New(log), Paths: []string{filepath.Join("../../examples", folder.Name())},
			})
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error)
			go func() { ended <- config.Run(ctx) }()
			defer func() { <-ended }()
			defer stop()

			<-config.Wake()
			pods := 0
			for _, update := range config.Take() {
				for _, p := range update.Pods {
					pods++
					if update.Op != pod.ADD {
						t.Errorf("%s: operation %v", p.Name, update.Op)
					}
					for _, field := range admission.UnsupportedClaims(p) {
						t.Errorf("%s: %s is not supported", p.Name, field)
					}
				}
			}
			if pods == 0 {
				t.Error("no pods")
			}
			for _, p := range config.Problems() {
				t.Errorf("%s: %s", p.Path, p.Message)
			}
		})
	}
}
