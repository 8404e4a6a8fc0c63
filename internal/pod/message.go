package pod

import (
	"regexp"
	"strings"
)

// volatile matches what is new in the message of each try: IDs, times and measured durations, ports
// of clients, process IDs, and the numbers in names of temporary files. A digest is none of these.
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

// IsSameMessage reports whether two messages of one failure differ in nothing but what is new with
// each try, as the ID of a container that the runtime did not create. Who has reported one of them
// need not report the other.
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
