package validation

import (
	"reflect"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

const (
	// Limits of ServiceAccountTokenProjection.expirationSeconds: 10 minutes, and the maximum of the
	// TokenRequest API.
	minTokenSeconds int64 = 600
	maxTokenSeconds int64 = 1 << 32

	// Of PodCertificateProjection.maxExpirationSeconds; Kubernetes' own signers issue for at most a
	// day.
	minCertificateSeconds    int32 = 3600
	maxCertificateSeconds    int32 = 7862400
	maxOwnCertificateSeconds int32 = 86400
	ownSigners                     = "kubernetes.io/"
)

// keyTypes are the values of PodCertificateProjection.keyType.
var keyTypes = []string{"RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519"}

func validateProjected(p *v1.ProjectedVolumeSource, path *field.Path) field.ErrorList {
	errs := validateMode(p.DefaultMode, path.Child("defaultMode"))
	paths := map[string]struct{}{}
	// All sources share one directory: paths of files must be unique.
	take := func(file string) {
		if file == "" {
			return
		}
		if _, ok := paths[file]; ok {
			errs = append(errs, field.Invalid(path, file, "conflicting duplicate paths"))
		}
		paths[file] = struct{}{}
	}
	for i := range p.Sources {
		s, at := &p.Sources[i], path.Child("sources").Index(i)
		if countSet(s) > 1 {
			errs = append(errs, field.Forbidden(at, "may not specify more than 1 volume type per source"))
		}
		if s.Secret != nil {
			errs = append(errs, required(at.Child("secret", "name"), s.Secret.Name)...)
			errs = append(errs, validateFiles(nil, s.Secret.Items, at.Child("secret"))...)
		}
		if s.ConfigMap != nil {
			errs = append(errs, required(at.Child("configMap", "name"), s.ConfigMap.Name)...)
			errs = append(errs, validateFiles(nil, s.ConfigMap.Items, at.Child("configMap"))...)
		}
		if s.DownwardAPI != nil {
			errs = append(errs, validateDownwardFiles(s.DownwardAPI.Items, at.Child("downwardAPI"))...)
		}
		if s.ServiceAccountToken != nil {
			errs = append(errs, validateToken(s.ServiceAccountToken, at.Child("serviceAccountToken"))...)
		}
		if s.ClusterTrustBundle != nil {
			errs = append(errs, validateTrustBundle(s.ClusterTrustBundle, at.Child("clusterTrustBundle"))...)
		}
		if s.PodCertificate != nil {
			errs = append(errs, validatePodCertificate(s.PodCertificate, at.Child("podCertificate"))...)
		}
		for _, f := range projectedFiles(s) {
			take(f)
		}
	}
	return errs
}

// countSet returns how many pointers of the struct are set.
func countSet[T any](s *T) int {
	n, fields := 0, reflect.ValueOf(s).Elem()
	for i := range fields.NumField() {
		if !fields.Field(i).IsNil() {
			n++
		}
	}
	return n
}

// projectedFiles returns the paths of the files of a source, except tokens: the API server does not
// compare their paths.
func projectedFiles(s *v1.VolumeProjection) []string {
	var paths []string
	var items []v1.KeyToPath
	if s.Secret != nil {
		items = append(items, s.Secret.Items...)
	}
	if s.ConfigMap != nil {
		items = append(items, s.ConfigMap.Items...)
	}
	for _, item := range items {
		paths = append(paths, item.Path)
	}
	if s.DownwardAPI != nil {
		for _, item := range s.DownwardAPI.Items {
			paths = append(paths, item.Path)
		}
	}
	if s.ClusterTrustBundle != nil {
		paths = append(paths, s.ClusterTrustBundle.Path)
	}
	if c := s.PodCertificate; c != nil {
		paths = append(paths, c.CredentialBundlePath, c.KeyPath, c.CertificateChainPath)
	}
	return paths
}

func validateToken(t *v1.ServiceAccountTokenProjection, path *field.Path) field.ErrorList {
	errs := validateKeyPath(t.Path, path.Child("path"))
	if s := t.ExpirationSeconds; s != nil && (*s < minTokenSeconds || *s > maxTokenSeconds) {
		errs = append(errs, field.Invalid(path.Child("expirationSeconds"), *s, "must be between 10 minutes and 2^32 seconds"))
	}
	return errs
}

// forbidTokens checks that a pod without a service account does not request its tokens.
func forbidTokens(p *v1.ProjectedVolumeSource, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range p.Sources {
		if p.Sources[i].ServiceAccountToken != nil {
			errs = append(errs, field.Forbidden(path.Child("sources").Index(i).Child("serviceAccountToken"),
				"must not be specified when serviceAccountName is not set"))
		}
	}
	return errs
}

func validateTrustBundle(b *v1.ClusterTrustBundleProjection, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch {
	case b.Name != nil && b.SignerName != nil:
		errs = append(errs, field.Invalid(path, *b.Name, "only one of name and signerName may be used"))
	case b.Name != nil:
		if *b.Name == "" {
			errs = append(errs, field.Required(path.Child("name"), "must be a valid object name"))
		}
		errs = append(errs, validateTrustBundleName(*b.Name, path.Child("name"))...)
		if b.LabelSelector != nil {
			errs = append(errs, field.Invalid(path.Child("labelSelector"), "", "labelSelector must be unset if name is specified"))
		}
	case b.SignerName != nil:
		errs = append(errs, validateSignerName(*b.SignerName, path.Child("signerName"))...)
		errs = append(errs, validateSelector(b.LabelSelector, path.Child("labelSelector"))...)
	default:
		errs = append(errs, field.Required(path, "either name or signerName must be specified"))
	}
	return append(errs, validateKeyPath(b.Path, path.Child("path"))...)
}

// validateTrustBundleName checks the name of a ClusterTrustBundle, which may have its signer's name
// as a prefix, with ':' for '/'
// (kubernetes.io/docs/reference/access-authn-authz/certificate-signing-requests, "Cluster trust
// bundles").
func validateTrustBundleName(name string, path *field.Path) field.ErrorList {
	own := name[strings.LastIndex(name, ":")+1:]
	return invalid(path, name, apivalidation.NameIsDNSSubdomain(own, false))
}

// validateSignerName checks that the name is a domain and a path
// (kubernetes.io/docs/reference/access-authn-authz/certificate-signing-requests, "Signers").
func validateSignerName(name string, path *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path, "must be a valid signer name")}
	}
	domain, rest, ok := strings.Cut(name, "/")
	if !ok || strings.Contains(rest, "/") || !strings.Contains(domain, ".") {
		return field.ErrorList{field.Invalid(path, name, "must be a fully qualified domain and path of the form 'example.com/signer-name'")}
	}
	errs := invalid(path, name, validation.IsDNS1123Subdomain(domain))
	for segment := range strings.SplitSeq(rest, ".") {
		errs = append(errs, invalid(path, name, validation.IsDNS1123Label(segment))...)
	}
	return errs
}

func validatePodCertificate(c *v1.PodCertificateProjection, path *field.Path) field.ErrorList {
	errs := validateSignerName(c.SignerName, path.Child("signerName"))
	if !slices.Contains(keyTypes, c.KeyType) {
		errs = append(errs, field.NotSupported(path.Child("keyType"), c.KeyType, keyTypes))
	}
	longest := maxCertificateSeconds
	if strings.HasPrefix(c.SignerName, ownSigners) {
		longest = maxOwnCertificateSeconds
	}
	if s := ptr.Deref(c.MaxExpirationSeconds, minCertificateSeconds); s < minCertificateSeconds || s > longest {
		errs = append(errs, field.Invalid(path.Child("maxExpirationSeconds"), s,
			validation.InclusiveRangeError(int(minCertificateSeconds), int(longest))))
	}
	files := 0
	for _, f := range []struct{ field, path string }{
		{"credentialBundlePath", c.CredentialBundlePath}, {"keyPath", c.KeyPath}, {"certificateChainPath", c.CertificateChainPath},
	} {
		if f.path != "" {
			files++
			errs = append(errs, validateKeyPath(f.path, path.Child(f.field))...)
		}
	}
	if files == 0 {
		errs = append(errs, field.Required(path, "specify at least one of credentialBundlePath, keyPath, and certificateChainPath"))
	}
	at := path.Child("userAnnotations")
	errs = append(errs, apivalidation.ValidateAnnotations(c.UserAnnotations, at)...)
	for key := range c.UserAnnotations {
		if !strings.Contains(key, "/") {
			errs = append(errs, field.Invalid(at, key, "must be a domain-prefixed key (such as \"acme.io/foo\")"))
		}
	}
	return errs
}
