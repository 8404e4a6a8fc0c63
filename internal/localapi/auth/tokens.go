package auth

import (
	"context"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/internal/checkpoint"
	"berth/internal/localapi/kinds"
)

// Objects reads objects of the local API.
type Objects interface {
	// Get returns an object; for a missing one, the error satisfies apierrors.IsNotFound.
	Get(ctx context.Context, k *kinds.Kind, namespace, name string) (kinds.Object, error)
}

// TokensConfig configures Tokens.
type TokensConfig struct {
	// Dir is the directory of the key, as of the authority.
	Dir string
	// Issuer is the iss claim of tokens; "" is https://kubernetes.default.svc.cluster.local.
	Issuer string
	// Audiences are those of the API: the default of token requests, and at least one of them is
	// required of a token; empty is the issuer.
	Audiences []string
	// KeysURL is the URL of the keys; "" is the path at https://kubernetes.default.svc.
	KeysURL string
	Objects Objects
}

// Tokens signs and verifies service account tokens. It is safe for concurrent use.
type Tokens struct {
	cfg    TokensConfig
	key    *ecdsa.PrivateKey
	keyID  string
	signer jose.Signer
}

// maxToken is the maximum size of a token, in bytes.
const maxToken = 16 << 10

// OpenTokens reads the key of tokens, and creates one if it does not exist.
func OpenTokens(cfg TokensConfig) (*Tokens, error) {
	if cfg.Issuer == "" {
		cfg.Issuer = "https://kubernetes.default.svc.cluster.local"
	}
	if len(cfg.Audiences) == 0 {
		cfg.Audiences = []string{cfg.Issuer}
	}
	if cfg.KeysURL == "" {
		cfg.KeysURL = "https://kubernetes.default.svc" + keysPath
	}
	path := filepath.Join(cfg.Dir, "tokens.pem")
	var key *ecdsa.PrivateKey
	err := locked(cfg.Dir, func() (err error) {
		key, err = ensureTokenKey(path)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("key of service accounts' tokens: %w", err)
	}
	der, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(der)
	t := &Tokens{cfg: cfg, key: key, keyID: base64.RawURLEncoding.EncodeToString(sum[:])}
	t.signer, err = jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: t.keyID}}, nil)
	return t, err
}

func ensureTokenKey(path string) (*ecdsa.PrivateKey, error) {
	content, err := readBounded(path)
	if errors.Is(err, fs.ErrNotExist) {
		key, err := newKey()
		if err != nil {
			return nil, err
		}
		if content, err = encodeKey(key); err != nil {
			return nil, err
		}
		return key, checkpoint.Write(path, 0o600, content)
	}
	if err != nil {
		return nil, err
	}
	key, err := decodeKey(content)
	if err != nil {
		return nil, fmt.Errorf("%s: %w; restore it from a backup, or remove it to have a new key made: tokens of the old one are refused then", path, err)
	}
	return key, nil
}

// claims are Kubernetes' own claims of a token.
type claims struct {
	// Audience is a list even of one element, as in kube-apiserver.
	Audience   []string         `json:"aud"`
	Kubernetes kubernetesClaims `json:"kubernetes.io"`
}

type kubernetesClaims struct {
	Namespace      string           `json:"namespace,omitempty"`
	Node           *reference       `json:"node,omitempty"`
	Pod            *reference       `json:"pod,omitempty"`
	Secret         *reference       `json:"secret,omitempty"`
	ServiceAccount reference        `json:"serviceaccount"`
	WarnAfter      *jwt.NumericDate `json:"warnafter,omitempty"`
}

type reference struct {
	Name string    `json:"name,omitempty"`
	UID  types.UID `json:"uid,omitempty"`
}

// errToken is an error that TokenReview reports: the token is invalid or no longer valid.
type errToken struct{ text string }

func (e errToken) Error() string { return e.text }

// errInvalid is the error for a token that this issuer has not signed.
var errInvalid = errToken{"invalid bearer token"}

// Check returns the user of a token, and those of audiences that it is for; none means those of the
// API. The objects that it is bound to must still exist.
func (t *Tokens) Check(ctx context.Context, token string, audiences []string) (*User, []string, error) {
	public, private, err := t.open(token)
	if err != nil {
		return nil, nil, err
	}
	now := time.Now()
	if err := public.Validate(jwt.Expected{Time: now, Issuer: t.cfg.Issuer}); err != nil {
		return nil, nil, describe(err)
	}
	if len(audiences) == 0 {
		audiences = t.cfg.Audiences
	}
	common := slices.DeleteFunc(slices.Clone(audiences), func(a string) bool { return !slices.Contains(private.Audience, a) })
	if len(common) == 0 {
		return nil, nil, errToken{fmt.Sprintf("token audiences %q is invalid for the target audiences %q", private.Audience, audiences)}
	}
	k := &private.Kubernetes
	if public.Subject != serviceAccountPrefix+k.Namespace+":"+k.ServiceAccount.Name {
		return nil, nil, errInvalid
	}
	u := k.user(public)
	u.until, u.bound = public.Expiry.Time().Add(jwt.DefaultLeeway), k.bound()
	for _, b := range u.bound {
		end, err := t.checkBound(ctx, b, now)
		if err != nil {
			return nil, nil, err
		}
		if !end.IsZero() && end.Before(u.until) {
			u.until = end
		}
	}
	return u, common, nil
}

func (t *Tokens) open(token string) (jwt.Claims, claims, error) {
	var public jwt.Claims
	var private claims
	if len(token) > maxToken {
		return public, private, errInvalid
	}
	parsed, err := jwt.ParseSigned(token, []jose.SignatureAlgorithm{jose.ES256})
	if err != nil || len(parsed.Headers) != 1 || parsed.Headers[0].KeyID != t.keyID {
		return public, private, errInvalid
	}
	if err := parsed.Claims(&t.key.PublicKey, &public, &private); err != nil {
		return public, private, errInvalid
	}
	if public.Expiry == nil || private.Kubernetes.ServiceAccount.UID == "" {
		return public, private, errInvalid // all tokens signed here have them
	}
	return public, private, nil
}

// describe returns kube-apiserver's messages.
func describe(err error) error {
	switch {
	case errors.Is(err, jwt.ErrExpired):
		return errToken{"service account token has expired"}
	case errors.Is(err, jwt.ErrNotValidYet), errors.Is(err, jwt.ErrIssuedInTheFuture):
		return errToken{"service account token is not valid yet"}
	}
	return errInvalid
}

// boundTo is an object that a token is bound to.
type boundTo struct {
	plural    string
	namespace string
	reference
}

// bindable are the plurals of resources that tokens are bound to.
var bindable = []string{"nodes", "pods", "secrets", "serviceaccounts"}

// bound returns the objects that a token is bound to. The node of a pod is not one of them.
func (k *kubernetesClaims) bound() []boundTo {
	found := []boundTo{{"serviceaccounts", k.Namespace, k.ServiceAccount}}
	if k.Secret != nil {
		found = append(found, boundTo{"secrets", k.Namespace, *k.Secret})
	}
	if k.Pod != nil {
		found = append(found, boundTo{"pods", k.Namespace, *k.Pod})
	} else if k.Node != nil {
		found = append(found, boundTo{"nodes", "", *k.Node})
	}
	return found
}

// deletedLeeway is how long after its grace period an object that is being deleted remains valid
// for tokens.
const deletedLeeway = time.Minute

// checkBound returns until when an object is valid for tokens, zero without limit.
func (t *Tokens) checkBound(ctx context.Context, b boundTo, now time.Time) (end time.Time, err error) {
	o, err := t.cfg.Objects.Get(ctx, kinds.Find("", "v1", b.plural), b.namespace, b.Name)
	switch {
	case isNotFound(err):
		return end, errToken{fmt.Sprintf("service account token has been invalidated: %s %q is gone", b.plural, b.Name)}
	case err != nil:
		return end, fmt.Errorf("check a token of %s %s/%s: %w", b.plural, b.namespace, b.Name, err)
	case o.GetUID() != b.UID:
		return end, errToken{fmt.Sprintf("service account token has been invalidated: %s %q is another one by now", b.plural, b.Name)}
	}
	if d := o.GetDeletionTimestamp(); d != nil {
		end = d.Add(deletedLeeway)
	}
	if !end.IsZero() && end.Before(now) {
		return end, errToken{fmt.Sprintf("service account token has been invalidated: %s %q is deleted", b.plural, b.Name)}
	}
	return end, nil
}

func (k *kubernetesClaims) user(public jwt.Claims) *User {
	u := &User{
		Name: public.Subject, UID: string(k.ServiceAccount.UID), Groups: authenticated(serviceAccountGroups(k.Namespace)),
		Extra: map[string]authenticationv1.ExtraValue{},
	}
	if public.ID != "" {
		u.Extra[credentialID] = []string{"JTI=" + public.ID}
	}
	for what, r := range map[string]*reference{"pod": k.Pod, "node": k.Node} {
		if r == nil {
			continue
		}
		u.Extra["authentication.kubernetes.io/"+what+"-name"] = []string{r.Name}
		if r.UID != "" {
			u.Extra["authentication.kubernetes.io/"+what+"-uid"] = []string{string(r.UID)}
		}
	}
	return u
}

func numericDate(t time.Time) *jwt.NumericDate { return jwt.NewNumericDate(t) }

func referenceTo(o metav1.Object) *reference { return &reference{o.GetName(), o.GetUID()} }
