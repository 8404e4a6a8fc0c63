package auth

import (
	"encoding/json"

	"github.com/go-jose/go-jose/v4"
)

// The paths of the documents for verifying tokens (OpenID Connect Discovery 1.0).
const (
	openIDPath = "/.well-known/openid-configuration"
	keysPath   = "/openid/v1/jwks"
)

// discovery returns the document at openIDPath.
func (t *Tokens) discovery() ([]byte, error) {
	return json.Marshal(struct {
		Issuer        string   `json:"issuer"`
		Keys          string   `json:"jwks_uri"`
		ResponseTypes []string `json:"response_types_supported"`
		Subjects      []string `json:"subject_types_supported"`
		Algorithms    []string `json:"id_token_signing_alg_values_supported"`
	}{t.cfg.Issuer, t.cfg.KeysURL, []string{"id_token"}, []string{"public"}, []string{string(jose.ES256)}})
}

// keys returns the document at keysPath.
func (t *Tokens) keys() ([]byte, error) {
	return json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{
		{Key: &t.key.PublicKey, KeyID: t.keyID, Algorithm: string(jose.ES256), Use: "sig"},
	}})
}
