package images

import (
	"github.com/distribution/reference"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// NodeCredentials returns the credentials for the image in the docker configs, in the order in
// which they are tried. If files cannot be read, it returns an error together with the credentials
// of the others.
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
