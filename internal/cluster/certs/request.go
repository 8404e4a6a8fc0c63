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

// signLimit is how long a request may wait for approval and signing before it is repeated.
const signLimit = 15 * time.Minute

// Signer is the certificate signing API. Errors are API errors (apierrors).
type Signer interface {
	CreateCertificateSigningRequest(ctx context.Context, r *certificatesv1.CertificateSigningRequest) (*certificatesv1.CertificateSigningRequest, error)
	// FollowCertificateSigningRequest calls seen with each version of the request, nil if it does
	// not exist, until ctx is done.
	FollowCertificateSigningRequest(ctx context.Context, name string, seen func(*certificatesv1.CertificateSigningRequest))
}

// errRefused means that a request will never be signed, and the next one must differ.
var errRefused = errors.New("the request will not be signed")

type request struct {
	prefix     string // of the name
	signerName string
	usages     []certificatesv1.KeyUsage
	template   *x509.CertificateRequest
	key        *ecdsa.PrivateKey
}

// sign creates the request and waits until it is signed. It returns the certificates in PEM form.
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
	// An existing request was created by an earlier agent with the same key.
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, err
	}
	return r.await(ctx, s, name)
}

// await waits until the request of this name is signed or rejected.
func (r *request) await(ctx context.Context, s Signer, name string) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, signLimit, fmt.Errorf("request %s: not approved and signed within %v", name, signLimit))
	defer cancel()
	var signed []byte
	var refused error
	exists := false
	s.FollowCertificateSigningRequest(ctx, name, func(now *certificatesv1.CertificateSigningRequest) {
		if signed != nil || refused != nil {
			return
		}
		switch {
		case now == nil && exists:
			refused = fmt.Errorf("request %s was deleted before it was signed: %w", name, errRefused)
		case now == nil:
			return
		default:
			exists = true
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

// outcome returns the certificate of a request or the reason of its rejection; neither while it is
// pending.
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

// name returns a hash of the key and the request, so that a restarted agent continues with its
// earlier request.
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
