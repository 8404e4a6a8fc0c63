package kube

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"berth/internal/checkpoint"
)

// LoadKubeconfig reads the current context of a kubeconfig file: the server and the credentials.
// Credential files that it names (client-certificate, client-key, tokenFile) and exec plugins are
// read again while a Client is in use; the kubeconfig itself is read once. Paths are relative to
// the file's directory. Errors name the file.
func LoadKubeconfig(path string) (*rest.Config, error) {
	raw, err := readKubeconfig(path)
	if err != nil {
		return nil, err
	}
	// No loading rules: the environment variable KUBECONFIG and a kubeconfig in the home directory
	// belong to users, not to a node.
	config, err := clientcmd.NewNonInteractiveClientConfig(*raw, "", &clientcmd.ConfigOverrides{}, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", path, err)
	}
	return config, nil
}

// LoadCluster returns the cluster of a kubeconfig's current context: the server's address and CA.
// Paths are relative to the file's directory.
func LoadCluster(path string) (*api.Cluster, error) {
	raw, err := readKubeconfig(path)
	if err != nil {
		return nil, err
	}
	if context := raw.Contexts[raw.CurrentContext]; context != nil {
		if cluster := raw.Clusters[context.Cluster]; cluster != nil {
			return cluster, nil
		}
	}
	return nil, fmt.Errorf("kubeconfig %s: the current-context %q has no cluster", path, raw.CurrentContext)
}

// readKubeconfig reads a kubeconfig file and makes its paths absolute.
func readKubeconfig(path string) (*api.Config, error) {
	raw, err := clientcmd.LoadFromFile(path)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("kubeconfig: %w", err) // it contains the path
		}
		return nil, fmt.Errorf("kubeconfig %s: %w", path, err)
	}
	if err := clientcmd.ResolveLocalPaths(raw); err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", path, err)
	}
	return raw, nil
}

// WriteKubeconfig writes the kubeconfig of a node: a cluster from LoadCluster, and the file with
// the node's client certificate and key. The file is replaced atomically.
func WriteKubeconfig(path string, of *api.Cluster, pair string) error {
	const context, cluster, user = "default-context", "default-cluster", "default-auth"
	config := api.NewConfig()
	config.Clusters[cluster] = of
	config.AuthInfos[user] = &api.AuthInfo{ClientCertificate: pair, ClientKey: pair}
	config.Contexts[context] = &api.Context{Cluster: cluster, AuthInfo: user, Namespace: "default"}
	config.CurrentContext = context
	content, err := clientcmd.Write(*config)
	if err != nil {
		return fmt.Errorf("kubeconfig %s: %w", path, err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	if err := checkpoint.Write(path, 0o600, content); err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	return nil
}
