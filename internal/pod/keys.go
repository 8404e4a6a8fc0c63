package pod

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// keysListed is how many keys of an object an error names.
const keysListed = 10

// ListKeys names the keys of an object in which one was looked for that is not there: "it has size,
// volume". Not for Secrets: whoever reads events need not know their keys.
func ListKeys[V any](data map[string]V) string {
	keys := slices.Sorted(maps.Keys(data))
	switch n := len(keys); {
	case n == 0:
		return "it has no keys"
	case n > keysListed:
		return fmt.Sprintf("it has %s and %d more", strings.Join(keys[:keysListed], ", "), n-keysListed)
	}
	return "it has " + strings.Join(keys, ", ")
}
