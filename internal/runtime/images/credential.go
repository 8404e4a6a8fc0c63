package images

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// auth is a registry credential. Pull records contain the hash of its JSON.
type auth struct {
	Username      string `json:"username,omitempty"`
	Password      string `json:"password,omitempty"`
	IdentityToken string `json:"identitytoken,omitempty"`
	RegistryToken string `json:"registrytoken,omitempty"`
}

// String redacts the credential in logs and errors.
func (auth) String() string { return "(hidden)" }

// GoString redacts the credential in logs and errors.
func (auth) GoString() string { return "(hidden)" }

func (a auth) hash() string {
	b, _ := json.Marshal(a) // cannot fail
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func (a auth) toCRI() *runtimeapi.AuthConfig {
	return &runtimeapi.AuthConfig{Username: a.Username, Password: a.Password, IdentityToken: a.IdentityToken, RegistryToken: a.RegistryToken}
}

// credential is an auth and its source, a secret or a service account; both are nil for a
// credential of the node, which every pod may use.
type credential struct {
	auth    auth
	secret  *pullSecret
	account *pullServiceAccount
}

// String redacts the credential in logs and errors.
func (credential) String() string { return "(hidden)" }

// GoString redacts the credential in logs and errors.
func (credential) GoString() string { return "(hidden)" }

// keyring holds credentials by image pattern.
type keyring map[string][]credential

func (k keyring) add(auths map[string]auth, secret *pullSecret) {
	for pattern, a := range auths {
		k[pattern] = append(k[pattern], credential{auth: a, secret: secret})
	}
}

// lookup returns the credentials for an image, longer patterns first, and those without wildcards
// before those with one. Invalid patterns match no image.
func (k keyring) lookup(image location) []credential {
	var found []credential
	for _, pattern := range slices.Backward(slices.Sorted(maps.Keys(k))) {
		if l, err := parseLocation(pattern); err == nil && l.matches(image) {
			found = append(found, k[pattern]...)
		}
	}
	return found
}

// distinct returns the auths in order without duplicates.
func distinct(credentials []credential) []auth {
	var auths []auth
	for _, c := range credentials {
		if !slices.Contains(auths, c.auth) {
			auths = append(auths, c.auth)
		}
	}
	return auths
}

// describe lists the sources of credentials, in order, for the journal. It does not include user
// names, which are secret for some registries.
func describe(credentials []credential) string {
	if len(credentials) == 0 {
		return "without credentials: none fits the registry"
	}
	var all []string
	for _, c := range credentials {
		from := "the node's credentials"
		switch {
		case c.secret != nil:
			from = "Secret " + c.secret.Namespace + "/" + c.secret.Name
		case c.account != nil:
			from = "ServiceAccount " + c.account.Namespace + "/" + c.account.Name
		}
		if !slices.Contains(all, from) {
			all = append(all, from)
		}
	}
	return "with " + strings.Join(all, ", then ")
}
