package images

import (
	"fmt"

	"github.com/distribution/reference"
)

// normaliseName returns the name as the runtime is asked for it: ":latest" appended when it has neither tag nor digest, else
// unchanged. Names outside the grammar of image references are refused.
func normaliseName(name string) (string, error) {
	ref, err := reference.ParseNormalizedNamed(name)
	if err != nil {
		return "", fmt.Errorf("couldn't parse image name %q: %w", name, err)
	}
	if reference.IsNameOnly(ref) {
		return name + ":latest", nil
	}
	return name, nil
}
