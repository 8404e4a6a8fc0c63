package kube

import (
	"errors"
	"fmt"
	"os"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// LoadKubeconfig reads the current context of a kubeconfig file: the server, and how the agent proves who it is. Credentials that
// the file names rather than contains (client-certificate, client-key, tokenFile, exec) are read again while a Client is used; the
// kubeconfig itself is read once. Relative paths are taken from the file's folder. An error says which file and what is wrong.
func LoadKubeconfig(path string) (*rest.Config, error) {
	raw, err := clientcmd.LoadFromFile(path)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("kubeconfig: %w", err) // names the path
		}
		return nil, fmt.Errorf("kubeconfig %s: %w", path, err)
	}
	if err := clientcmd.ResolveLocalPaths(raw); err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", path, err)
	}
	// No loading rules: the environment variable KUBECONFIG and a kubeconfig in the home folder belong to people, not to a node.
	config, err := clientcmd.NewNonInteractiveClientConfig(*raw, "", &clientcmd.ConfigOverrides{}, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", path, err)
	}
	return config, nil
}
