package access_test

import (
	v1 "k8s.io/api/core/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
)

func configMap(namespace, name string) *v1.ConfigMap { return &v1.ConfigMap{ObjectMeta: meta(namespace, name)} }

// token asks for a token of a service account.
func (s *server) token(namespace, name string, spec authenticationv1.TokenRequestSpec) string {
	s.t.Helper()
	r := &authenticationv1.TokenRequest{Spec: spec}
	if err := s.tokens.Request(s.t.Context(), namespace, name, r); err != nil {
		s.t.Fatal(err)
	}
	return r.Status.Token
}
