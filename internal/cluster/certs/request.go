package certs

import (
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// signLimit is how long a request may wait to be approved and signed before it is asked for again.
const signLimit = 15 * time.Minute

// Signer is the part of the API server that signs certificates. Errors are those of the API
// (apierrors).
type Signer interface {
	CreateCertificateSigningRequest(ctx context.Context, r *certificatesv1.CertificateSigningRequest) (*certificatesv1.CertificateSigningRequest, error)
	// FollowCertificateSigningRequest hands over the request of this name whenever it has changed,
	// and nil when there is none, until ctx is done.
	FollowCertificateSigningRequest(ctx context.Context, name string, seen func(*certificatesv1.CertificateSigningRequest))
}

// errRefused says that a request will never be signed: the next one must be another.
var errRefused = errors.New("the request will not be signed")

// request is one certificate to ask for.
type request struct {
	prefix     string // of the name
	signerName string
	usages     []certificatesv1.KeyUsage
	template   *x509.CertificateRequest
	key        *ecdsa.PrivateKey
}

// sign asks for the certificate and waits until it is signed. It returns the certificates in PEM
// form.
func (r *request) sign(ctx context.Context, s Signer) ([]byte, error) {
	der, err := x509.CreateCertificateRequest(rand.Reader, r.template, r.key)
	if err != nil {
		return nil, err
	}
	name, err := r.name()
	if err != nil {
		return nil, err
	}
	_, err = s.CreateCertificateSigningRequest(ctx, &certificatesv1.CertificateSigningRequest{
		TypeMeta:   metav1.TypeMeta{APIVersion: "certificates.k8s.io/v1", Kind: "CertificateSigningRequest"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			SignerName: r.signerName, Usages: r.usages,
		},
	})
	// One that is there was made by an agent before this one, with the same key.
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, err
	}
	return r.await(ctx, s, name)
}

// await waits until the request of this name is signed or refused.
func (r *request) await(ctx context.Context, s Signer, name string) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, signLimit, fmt.Errorf("request %s: not approved and signed within %v", name, signLimit))
	defer cancel()
	var signed []byte
	var refused error
	met := false
	s.FollowCertificateSigningRequest(ctx, name, func(now *certificatesv1.CertificateSigningRequest) {
		if signed != nil || refused != nil {
			return
		}
		switch {
		case now == nil && met:
			refused = fmt.Errorf("request %s was deleted before it was signed: %w", name, errRefused)
		case now == nil:
			return
		default:
			met = true
			signed, refused = outcome(now)
		}
		if signed != nil || refused != nil {
			cancel()
		}
	})
	if signed != nil || refused != nil {
		return signed, refused
	}
	return nil, context.Cause(ctx)
}

// outcome returns the certificate of a request, or why there will be none; neither as long as it
// waits.
func outcome(r *certificatesv1.CertificateSigningRequest) ([]byte, error) {
	approved := false
	for _, c := range r.Status.Conditions {
		switch {
		case c.Type == certificatesv1.CertificateApproved:
			approved = true
		case (c.Type == certificatesv1.CertificateDenied || c.Type == certificatesv1.CertificateFailed) && c.Status != v1.ConditionFalse:
			return nil, fmt.Errorf("request %s: %s, %s: %s: %w", r.Name, c.Type, c.Reason, c.Message, errRefused)
		}
	}
	if approved && len(r.Status.Certificate) > 0 {
		return r.Status.Certificate, nil
	}
	return nil, nil
}

// name is made from the key and what is asked for, so that an agent that was ended goes on with the
// request that it made.
func (r *request) name() (string, error) {
	public, err := x509.MarshalPKIXPublicKey(r.key.Public())
	if err != nil {
		return "", err
	}
	h := sha256.New()
	h.Write(public)
	fmt.Fprintf(h, "|%s|%q|%q|%q|%q|%q", r.signerName, r.usages, r.template.Subject.CommonName, r.template.Subject.Organization, r.template.DNSNames, r.template.IPAddresses)
	return r.prefix + hex.EncodeToString(h.Sum(nil)[:16]), nil
}
