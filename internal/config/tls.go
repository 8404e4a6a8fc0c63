package config

import (
	"crypto/tls"
	"fmt"
	"maps"
	"slices"
)

// TLS is the TLS configuration of the HTTPS port. Zero values select the defaults of crypto/tls.
type TLS struct {
	MinVersion   uint16
	CipherSuites []uint16
	Curves       []tls.CurveID
}

var tlsVersions = map[string]uint16{
	"VersionTLS10": tls.VersionTLS10, "VersionTLS11": tls.VersionTLS11, "VersionTLS12": tls.VersionTLS12, "VersionTLS13": tls.VersionTLS13,
}

// cipherSuites are the values of tlsCipherSuites: the names of crypto/tls, and the older names of
// two, which the kubelet accepts too.
var cipherSuites = func() map[string]uint16 {
	known := map[string]uint16{
		"TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305":   tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305,
		"TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305": tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305,
	}
	for _, s := range slices.Concat(tls.CipherSuites(), tls.InsecureCipherSuites()) {
		known[s.Name] = s.ID
	}
	return known
}()

// TLS returns tlsMinVersion, tlsCipherSuites and tlsCurvePreferences, which Load has validated.
func (k *Kubelet) TLS() TLS {
	t := TLS{MinVersion: tlsVersions[k.TLSMinVersion]}
	for _, name := range k.TLSCipherSuites {
		t.CipherSuites = append(t.CipherSuites, cipherSuites[name])
	}
	for _, id := range k.TLSCurvePreferences {
		t.Curves = append(t.Curves, tls.CurveID(id))
	}
	return t
}

func validateTLS(c *check, k *Kubelet) {
	if v := k.TLSMinVersion; v != "" {
		c.oneOf("tlsMinVersion", v, slices.Sorted(maps.Keys(tlsVersions))...)
	}
	names := slices.Sorted(maps.Keys(cipherSuites))
	for i, name := range k.TLSCipherSuites {
		if _, ok := cipherSuites[name]; !ok {
			c.fail(fmt.Sprintf("tlsCipherSuites[%d]", i), "%q is no cipher suite%s", name, orMeant(name, names))
		}
	}
	for i, id := range k.TLSCurvePreferences {
		c.between(fmt.Sprintf("tlsCurvePreferences[%d]", i), int64(id), 1, 65535)
	}
}
