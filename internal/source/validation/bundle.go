package validation

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"strings"

	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// nameOfBundle returns the rule for the name of a ClusterTrustBundle: it has its signer's name as a
// prefix, with ':' for '/', only if there is a signer (API reference, "ClusterTrustBundle
// v1beta1").
func nameOfBundle(signer string) apivalidation.ValidateNameFunc {
	return func(name string, prefix bool) []string {
		if signer == "" {
			if strings.Contains(name, ":") {
				return []string{"ClusterTrustBundle without signer name must not have \":\" in its name"}
			}
			return apivalidation.NameIsDNSSubdomain(name, prefix)
		}
		before := strings.ReplaceAll(signer, "/", ":") + ":"
		own, ok := strings.CutPrefix(name, before)
		if !ok {
			return []string{fmt.Sprintf("ClusterTrustBundle for signerName %s must be named with prefix %s", signer, before)}
		}
		return apivalidation.NameIsDNSSubdomain(own, prefix)
	}
}

// validateBundle checks that the bundle consists of valid certificates without duplicates.
func validateBundle(b *certificatesv1beta1.ClusterTrustBundle) field.ErrorList {
	var errs field.ErrorList
	if b.Spec.SignerName != "" {
		errs = append(errs, validateSignerName(b.Spec.SignerName, field.NewPath("spec", "signerName"))...)
	}
	path := field.NewPath("spec", "trustBundle")
	refuse := func(format string, args ...any) {
		errs = append(errs, field.Invalid(path, "<value omitted>", fmt.Sprintf(format, args...)))
	}
	seen := map[string]int{}
	n := 0
	for rest := []byte(b.Spec.TrustBundle); ; n++ {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		first, twice := seen[string(block.Bytes)]
		switch _, err := x509.ParseCertificate(block.Bytes); {
		case block.Type != "CERTIFICATE":
			refuse("entry %d has bad block type: %v", n, block.Type)
		case len(block.Headers) != 0:
			refuse("entry %d has PEM block headers", n)
		case err != nil:
			refuse("entry %d does not parse as X.509: %v", n, err)
		case twice:
			refuse("entries %d and %d are the same certificate", first, n)
		}
		seen[string(block.Bytes)] = n
	}
	if n == 0 {
		refuse("at least one trust anchor must be provided")
	}
	return errs
}
