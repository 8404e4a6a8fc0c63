package images

import (
	"github.com/distribution/reference"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// NodeCredentials returns the credentials that the docker configs hold for the image, in the order
// in which they are to be tried. An error tells of files that cannot be read, and comes beside what
// the others hold.
func NodeCredentials(dockerConfigs []string, image reference.Named) ([]*runtimeapi.AuthConfig, error) {
	auths, err := readDockerConfig(dockerConfigs)
	ring := keyring{}
	ring.add(auths, nil)
	var found []*runtimeapi.AuthConfig
	for _, a := range distinct(ring.lookup(locate(reference.TrimNamed(image)))) {
		found = append(found, a.toCRI())
	}
	return found, err
}
