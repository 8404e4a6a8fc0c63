package auth

import (
	"errors"
	"fmt"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"berth/internal/checkpoint"
)

// adminLife is the validity of the administrator's certificate, which is created at each start of
// the agent.
const adminLife = 365 * day

// WriteAdmin writes the administrator's kubeconfig, readable by root only, with a new certificate.
func WriteAdmin(path, server string, a *Authority) error {
	content, err := kubeconfig(a, Grant{Server: server, Life: adminLife, Rule: Rule{Users: []string{Root}, Groups: []string{mastersGroup}}})
	if err != nil {
		return fmt.Errorf("kubeconfig of the administrator: %w", err)
	}
	return checkpoint.WriteWarm(path, 0o600, content)
}

// Grant describes a new kubeconfig.
type Grant struct {
	// Rule is what its user may do, in addition to the rules file. Users has only that user, and
	// Groups its groups. A rule without verbs, resources and paths adds nothing.
	Rule Rule
	// Life is the validity of the certificate.
	Life time.Duration
	// Token authenticates the user in place of a certificate; "" creates a certificate.
	Token string
	// Server is the URL of the API.
	Server string
}

// Kubeconfig returns a kubeconfig of a user, with a certificate of the authority or a token, and
// adds the rule to the rules file: for the user only, not for its groups.
func Kubeconfig(a *Authority, rulesPath string, g Grant) ([]byte, error) {
	if len(g.Rule.Users) != 1 {
		return nil, errors.New("a kubeconfig is of one user: name it by --user")
	}
	content, err := kubeconfig(a, g)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig of %q: %w", g.Rule.Users[0], err)
	}
	r := g.Rule
	r.Groups = nil
	if len(r.Verbs)+len(r.Resources)+len(r.NonResourceURLs)+len(r.ResourceNames) == 0 {
		return content, nil
	}
	if wrong := r.prepare(); wrong != nil {
		return nil, fmt.Errorf("rule of %q: %s: %w", g.Rule.Users[0], wrong.field, wrong.err)
	}
	return content, addRule(rulesPath, r)
}

func kubeconfig(a *Authority, g Grant) ([]byte, error) {
	user := g.Rule.Users[0]
	known := &clientcmdapi.AuthInfo{Token: g.Token}
	if g.Token == "" {
		var err error
		if known.ClientCertificateData, known.ClientKeyData, err = a.Client(user, g.Rule.Groups, g.Life); err != nil {
			return nil, err
		}
	}
	const cluster = "berth"
	name := user + "@" + cluster
	c := clientcmdapi.NewConfig()
	c.Clusters[cluster] = &clientcmdapi.Cluster{Server: g.Server, CertificateAuthorityData: a.Certificate()}
	c.AuthInfos[user] = known
	c.Contexts[name] = &clientcmdapi.Context{Cluster: cluster, AuthInfo: user}
	if len(g.Rule.Namespaces) == 1 && g.Rule.Namespaces[0] != all {
		c.Contexts[name].Namespace = g.Rule.Namespaces[0]
	}
	c.CurrentContext = name
	return clientcmd.Write(*c)
}
