package pod

import (
	"regexp"
	"strings"
)

// volatile matches parts of a message that change with each attempt: IDs, times and measured
// durations, client ports, process IDs, and the numbers in names of temporary files. Digests are
// excluded.
var volatile = regexp.MustCompile(strings.Join([]string{
	`sha256:[0-9a-f]{64}`,
	`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`,
	`\b[0-9a-f]{32,64}\b`,
	`\b\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(\.\d+)?(Z|[+-]\d{2}:\d{2})?`,
	`\b(\d+h)?(\d+m)?\d+\.\d+(ns|µs|ms|s)\b`,
	`:\d+->`,
	`\b(pid|PID)[ =:]+\d+\b`,
	`\b[A-Za-z_.-]*[A-Za-z_.-]\d{6,}\b`,
}, "|"))

// IsSameMessage reports whether two messages of a failure differ only in parts that change with
// each attempt, such as the ID of a container that could not be created. The second message need
// not be reported then.
func IsSameMessage(a, b string) bool {
	return a == b || stableMessage(a) == stableMessage(b)
}

func stableMessage(message string) string {
	return volatile.ReplaceAllStringFunc(message, func(part string) string {
		if strings.HasPrefix(part, "sha256:") {
			return part
		}
		return "…"
	})
}
