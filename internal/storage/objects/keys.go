package objects

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
)

// generateKey returns a new private key of the type, one of PodCertificateProjection.keyType.
func generateKey(keyType string) (crypto.Signer, error) {
	switch keyType {
	case "RSA3072":
		return rsa.GenerateKey(rand.Reader, 3072)
	case "RSA4096":
		return rsa.GenerateKey(rand.Reader, 4096)
	case "ECDSAP256":
		return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case "ECDSAP384":
		return ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	case "ECDSAP521":
		return ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	case "ED25519":
		_, key, err := ed25519.GenerateKey(rand.Reader)
		return key, err
	}
	return nil, fmt.Errorf("keys of type %q are not known: use RSA3072, RSA4096, ECDSAP256, ECDSAP384, ECDSAP521 or ED25519", keyType)
}

// generateRequest returns a new private key, as PEM (PKCS #8), and a request signed by it (PKCS
// #10, DER) without content, which proves possession of the key.
func generateRequest(keyType string) (key, stub []byte, err error) {
	signer, err := generateKey(keyType)
	if err != nil {
		return nil, nil, err
	}
	if stub, err = x509.CreateCertificateRequest(nil, &x509.CertificateRequest{}, signer); err != nil {
		return nil, nil, fmt.Errorf("sign the request: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(signer)
	if err != nil {
		return nil, nil, fmt.Errorf("encode the key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), stub, nil
}
