package offlinecache

import (
	"fmt"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	storagev1 "k8s.io/api/storage/v1"

	"berth/internal/pod"
)

type kind string

// The kinds, by their API names. A trustBundles record has the bundles of one name or one signer.
const (
	podKind      kind = "Pod"
	configMaps   kind = "ConfigMap"
	secrets      kind = "Secret"
	tokens       kind = "TokenRequest"
	services     kind = "ServiceList"
	classes      kind = "RuntimeClass"
	accounts     kind = "ServiceAccount"
	claims       kind = "PersistentVolumeClaim"
	volumes      kind = "PersistentVolume"
	drivers      kind = "CSIDriver"
	trustBundles kind = "ClusterTrustBundleList"
)

var kinds = map[kind]func() any{
	podKind:      func() any { return &v1.Pod{} },
	configMaps:   func() any { return &v1.ConfigMap{} },
	secrets:      func() any { return &v1.Secret{} },
	tokens:       func() any { return &authenticationv1.TokenRequest{} },
	services:     func() any { return &v1.ServiceList{} },
	classes:      func() any { return &nodev1.RuntimeClass{} },
	accounts:     func() any { return &v1.ServiceAccount{} },
	claims:       func() any { return &v1.PersistentVolumeClaim{} },
	volumes:      func() any { return &v1.PersistentVolume{} },
	drivers:      func() any { return &storagev1.CSIDriver{} },
	trustBundles: func() any { return &certificatesv1beta1.ClusterTrustBundleList{} },
}

func (k kind) isSecret() bool { return k == secrets || k == tokens }

// ref identifies a record. A pod's Name is its UID.
type ref struct {
	Kind            kind
	Namespace, Name string
}

// String returns a readable name for messages.
func (r ref) String() string {
	switch {
	case r.Kind == tokens:
		account, _, _ := strings.Cut(r.Name, " ")
		return fmt.Sprintf("a token of ServiceAccount %s/%s", r.Namespace, account)
	case r.Kind == services && r.Name == "":
		return "the Services of namespace " + r.Namespace
	case r.Namespace == "":
		return string(r.Kind) + " " + r.Name
	}
	return fmt.Sprintf("%s %s/%s", r.Kind, r.Namespace, r.Name)
}

func podRef(uid pod.UID) ref { return ref{Kind: podKind, Name: string(uid)} }

// masterService is the Service of the default namespace that is in the environment of every
// container.
const masterService = "kubernetes"

// tokenRef identifies a token request. Its name begins with the account and the pod's UID.
func tokenRef(namespace, account string, t *authenticationv1.TokenRequest) ref {
	seconds := int64(0)
	if t.Spec.ExpirationSeconds != nil {
		seconds = *t.Spec.ExpirationSeconds
	}
	bound := ""
	if t.Spec.BoundObjectRef != nil {
		bound = string(t.Spec.BoundObjectRef.UID)
	}
	return ref{tokens, namespace, fmt.Sprintf("%s %s %s %q %d", account, bound, t.UID, t.Spec.Audiences, seconds)}
}

// refsOf returns the cached kinds of references: of a pod its objects, of a claim its volume, of a
// volume its driver and the driver's Secrets.
func refsOf(o any) []ref {
	switch o := o.(type) { // nil refers to nothing
	case *v1.Pod:
		return refsOfPod(o)
	case *v1.PersistentVolumeClaim:
		if o.Spec.VolumeName != "" {
			return []ref{{Kind: volumes, Name: o.Spec.VolumeName}}
		}
	case *v1.PersistentVolume:
		if c := o.Spec.CSI; c != nil {
			out := []ref{{Kind: drivers, Name: c.Driver}}
			for _, s := range []*v1.SecretReference{c.NodeStageSecretRef, c.NodePublishSecretRef, c.NodeExpandSecretRef} {
				if s != nil {
					out = append(out, ref{secrets, s.Namespace, s.Name})
				}
			}
			return out
		}
	}
	return nil
}

func refsOfPod(p *v1.Pod) []ref {
	out := map[ref]bool{}
	add := func(k kind, namespace, name string) {
		if name != "" {
			out[ref{k, namespace, name}] = true
		}
	}
	maps, hidden := pod.References(p)
	for name := range maps {
		add(configMaps, p.Namespace, name)
	}
	for name := range hidden {
		add(secrets, p.Namespace, name)
	}
	out[ref{Kind: services, Namespace: p.Namespace}] = true
	out[ref{services, v1.NamespaceDefault, masterService}] = true
	add(accounts, p.Namespace, p.Spec.ServiceAccountName)
	if p.Spec.RuntimeClassName != nil {
		add(classes, "", *p.Spec.RuntimeClassName)
	}
	for i := range p.Spec.Volumes {
		switch v := &p.Spec.Volumes[i]; {
		case v.PersistentVolumeClaim != nil:
			add(claims, p.Namespace, v.PersistentVolumeClaim.ClaimName)
		case v.Ephemeral != nil:
			add(claims, p.Namespace, p.Name+"-"+v.Name)
		case v.CSI != nil:
			add(drivers, "", v.CSI.Driver)
		case v.Projected != nil:
			for _, s := range v.Projected.Sources {
				if b := s.ClusterTrustBundle; b != nil {
					add(trustBundles, "", bundlesOf(b))
				}
			}
		}
	}
	refs := make([]ref, 0, len(out))
	for r := range out {
		refs = append(refs, r)
	}
	slices.SortFunc(refs, func(a, b ref) int { return strings.Compare(a.String(), b.String()) })
	return refs
}

// bundlesOf identifies the bundles that the source may project; "" for none.
func bundlesOf(b *v1.ClusterTrustBundleProjection) string {
	switch {
	case b.Name != nil:
		return "name " + *b.Name
	case b.SignerName != nil:
		return "signer " + *b.SignerName
	}
	return ""
}

// selectServices returns the Services of the record, all of a namespace or one, with only the
// fields that the agent reads.
func selectServices(all []*v1.Service, r ref) any {
	out := &v1.ServiceList{}
	for _, s := range all {
		if s.Namespace != r.Namespace || r.Name != "" && s.Name != r.Name {
			continue
		}
		out.Items = append(out.Items, v1.Service{Spec: s.Spec})
		m := &out.Items[len(out.Items)-1]
		m.Name, m.Namespace, m.UID = s.Name, s.Namespace, s.UID
	}
	return out
}

func selectBundles(all []*certificatesv1beta1.ClusterTrustBundle, r ref) any {
	out := &certificatesv1beta1.ClusterTrustBundleList{}
	for _, b := range all {
		if r.Name == "name "+b.Name || r.Name == "signer "+b.Spec.SignerName {
			out.Items = append(out.Items, *b)
		}
	}
	return out
}
