package manifest

import (
	"path/filepath"
	"strings"
)

const node = "node-1"

// messages prints problems as "base severity: message".
func messages(problems []Problem) string {
	var out []string
	for _, p := range problems {
		out = append(out, filepath.Base(p.Path)+" "+string(p.Severity)+": "+p.Message)
	}
	return strings.Join(out, "\n")
}
