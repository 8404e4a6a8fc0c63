package images

import (
	"fmt"

	"github.com/distribution/reference"
)

// names are what an image is called.
type names struct {
	// image is how the runtime is asked for it: as the container has it, with ":latest" appended
	// when it has neither tag nor digest.
	image string
	// repository is how the container has it, without tag and digest; records of pulls are by it.
	repository string
	// full is the repository with its registry ("docker.io/library/nginx").
	full reference.Named
}

// parseName returns the names of a container's image. Those outside the grammar of image references
// are refused.
func parseName(name string) (names, error) {
	ref, err := reference.ParseNormalizedNamed(name)
	if err != nil {
		return names{}, fmt.Errorf("couldn't parse image name %q: %w", name, err)
	}
	n := names{image: name, full: reference.TrimNamed(ref)}
	if reference.IsNameOnly(ref) {
		n.image, n.repository = name+":latest", name
		return n, nil
	}
	rest := 0
	if tagged, ok := ref.(reference.Tagged); ok {
		rest += len(":") + len(tagged.Tag())
	}
	if digested, ok := ref.(reference.Digested); ok {
		rest += len("@") + len(digested.Digest())
	}
	n.repository = name[:len(name)-rest]
	return n, nil
}
