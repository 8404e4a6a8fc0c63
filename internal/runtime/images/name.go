package images

import (
	"fmt"

	"github.com/distribution/reference"
)

// names are the forms of an image's name.
type names struct {
	// image is the name for runtime calls: as in the container, with ":latest" appended if it has
	// neither tag nor digest.
	image string
	// repository is the container's name without tag and digest; the key in pull records.
	repository string
	// full is the repository with its registry ("docker.io/library/nginx").
	full reference.Named
}

// parseName returns the names of a container's image. Names outside the grammar of image references
// are rejected.
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
