package pod

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// keysListed limits the keys of an object in an error.
const keysListed = 10

// ListKeys lists an object's keys for an error about a missing key: "it has size, volume". Do not
// use it for Secrets: readers of events must not see their keys.
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
