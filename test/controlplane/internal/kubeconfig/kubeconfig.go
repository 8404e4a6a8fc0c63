// Package kubeconfig writes the file by which a client of Kubernetes finds its API server.
//
// Owns: the format, as far as a client with a certificate needs it.
// Reads: nothing.
// Never: touches files.
package kubeconfig

import (
	"encoding/json"

	"berth/test/controlplane/internal/pki"
)

// Marshal returns a kubeconfig that has everything inside: the address of the API server, the
// authority that its certificate is checked against, and the client's own certificate and key. It
// is JSON, which every reader of the format takes as the YAML that it is.
func Marshal(server string, authority []byte, client pki.Pair) []byte {
	const name = "berth"
	out, err := json.MarshalIndent(config{
		APIVersion:     "v1",
		Kind:           "Config",
		Clusters:       []namedCluster{{name, cluster{Server: server, Authority: authority}}},
		Users:          []namedUser{{name, user{Cert: client.Cert, Key: client.Key}}},
		Contexts:       []namedContext{{name, context{Cluster: name, User: name}}},
		CurrentContext: name,
	}, "", "  ")
	if err != nil {
		panic(err) // strings and bytes can be written
	}
	return append(out, '\n')
}

type config struct {
	APIVersion     string         `json:"apiVersion"`
	Kind           string         `json:"kind"`
	Clusters       []namedCluster `json:"clusters"`
	Users          []namedUser    `json:"users"`
	Contexts       []namedContext `json:"contexts"`
	CurrentContext string         `json:"current-context"`
}

type namedCluster struct {
	Name    string  `json:"name"`
	Cluster cluster `json:"cluster"`
}

type cluster struct {
	Server    string `json:"server"`
	Authority []byte `json:"certificate-authority-data"`
}

type namedUser struct {
	Name string `json:"name"`
	User user   `json:"user"`
}

type user struct {
	Cert []byte `json:"client-certificate-data"`
	Key  []byte `json:"client-key-data"`
}

type namedContext struct {
	Name    string  `json:"name"`
	Context context `json:"context"`
}

type context struct {
	Cluster string `json:"cluster"`
	User    string `json:"user"`
}
