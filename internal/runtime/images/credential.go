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

// auth is what a registry is shown. Its JSON is what pull records hold the hash of.
type auth struct {
	Username      string `json:"username,omitempty"`
	Password      string `json:"password,omitempty"`
	IdentityToken string `json:"identitytoken,omitempty"`
	RegistryToken string `json:"registrytoken,omitempty"`
}

// String hides the credential from logs and errors.
func (auth) String() string { return "(hidden)" }

// GoString hides the credential from logs and errors.
func (auth) GoString() string { return "(hidden)" }

// hash returns the SHA-256 of the credential in hexadecimal digits.
func (a auth) hash() string {
	b, _ := json.Marshal(a) // strings can be written
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func (a auth) toCRI() *runtimeapi.AuthConfig {
	return &runtimeapi.AuthConfig{Username: a.Username, Password: a.Password, IdentityToken: a.IdentityToken, RegistryToken: a.RegistryToken}
}

// credential is an auth and the secret, or the service account, that it is from; of a credential of
// the node, which every pod may use, both are nil.
type credential struct {
	auth
	secret  *pullSecret
	account *pullServiceAccount
}

// keyring are credentials by the pattern of the images that they are for.
type keyring map[string][]credential

func (k keyring) add(auths map[string]auth, secret *pullSecret) {
	for pattern, a := range auths {
		k[pattern] = append(k[pattern], credential{auth: a, secret: secret})
	}
}

// lookup returns the credentials for an image, those of longer patterns first, and those without
// wildcards before those with one. Patterns that are none are for no image.
func (k keyring) lookup(image location) []credential {
	var found []credential
	for _, pattern := range slices.Backward(slices.Sorted(maps.Keys(k))) {
		if l, err := parseLocation(pattern); err == nil && l.matches(image) {
			found = append(found, k[pattern]...)
		}
	}
	return found
}

// distinct returns the auths in order, each once.
func distinct(credentials []credential) []auth {
	var auths []auth
	for _, c := range credentials {
		if !slices.Contains(auths, c.auth) {
			auths = append(auths, c.auth)
		}
	}
	return auths
}

// describe says for the journal where the credentials are from with which a registry is asked, in
// order. It names no user: with some registries the user's name is the secret.
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
