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

// LoadKubeconfig reads the current context of a kubeconfig file: the server, and how the agent
// proves who it is. Credentials that the file names rather than contains (client-certificate,
// client-key, tokenFile, exec) are read again while a Client is used; the kubeconfig itself is read
// once. Relative paths are taken from the file's folder. An error says which file and what is
// wrong.
func LoadKubeconfig(path string) (*rest.Config, error) {
	raw, err := readKubeconfig(path)
	if err != nil {
		return nil, err
	}
	// No loading rules: the environment variable KUBECONFIG and a kubeconfig in the home folder
	// belong to people, not to a node.
	config, err := clientcmd.NewNonInteractiveClientConfig(*raw, "", &clientcmd.ConfigOverrides{}, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", path, err)
	}
	return config, nil
}

// LoadCluster reads what a kubeconfig file says of the cluster of its current context: the server,
// and how it is reached and known. Relative paths are taken from the file's folder.
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

// readKubeconfig reads a kubeconfig file as it is, with absolute paths.
func readKubeconfig(path string) (*api.Config, error) {
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
	return raw, nil
}

// WriteKubeconfig writes the kubeconfig of a node: a cluster as LoadCluster returns it, and the
// file that holds the node's client certificate and its key. The file is replaced in one step.
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
