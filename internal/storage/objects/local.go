package objects

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/pod"
	"berth/internal/record/journal"
)

// Local is what pods need besides themselves where there is no API server: the objects that
// manifests define. It answers as Objects do, and is safe for concurrent use. It runs nothing.
type Local struct {
	journal  *journal.Journal
	handlers func(context.Context) ([]string, error)
	changed  *pod.Inbox[pod.UID]

	mu         sync.Mutex
	configMaps localObjects[*v1.ConfigMap]                           // guarded by mu
	secrets    localObjects[*v1.Secret]                              // guarded by mu
	classes    localObjects[*nodev1.RuntimeClass]                    // guarded by mu
	claims     localObjects[*v1.PersistentVolumeClaim]               // guarded by mu
	volumes    localObjects[*v1.PersistentVolume]                    // guarded by mu
	bundles    localObjects[*certificatesv1beta1.ClusterTrustBundle] // guarded by mu
	drivers    localObjects[*storagev1.CSIDriver]                    // guarded by mu
	sizes      map[key]resource.Quantity                             // guarded by mu; that volumes of claims were given
}

// Defined are the objects that manifests define. They are shared and never changed.
type Defined struct {
	ConfigMaps     []*v1.ConfigMap
	Secrets        []*v1.Secret
	RuntimeClasses []*nodev1.RuntimeClass
	Claims         []*v1.PersistentVolumeClaim
	Volumes        []*v1.PersistentVolume
	TrustBundles   []*certificatesv1beta1.ClusterTrustBundle
	Drivers        []*storagev1.CSIDriver
}

// localObjects are the objects of one kind and the pods that refer to them.
type localObjects[P localObject] struct {
	resource string // as errors name it
	objects  map[key]P
	pods     map[pod.UID]referrer
}

// referrer is a pod with what it refers to.
type referrer struct {
	journal.Subject
	keys []key
	all  bool // it refers to any object of the kind
}

type localObject interface {
	comparable
	metav1.Object
}

// NewLocal returns a Local without objects. handlers asks the runtime for the names of its
// handlers; a pod may name one as its RuntimeClass.
func NewLocal(j *journal.Journal, handlers func(context.Context) ([]string, error)) *Local {
	return &Local{
		journal:    j,
		handlers:   handlers,
		changed:    pod.NewInbox[pod.UID](),
		configMaps: localObjects[*v1.ConfigMap]{resource: "configmap", pods: map[pod.UID]referrer{}},
		secrets:    localObjects[*v1.Secret]{resource: "secret", pods: map[pod.UID]referrer{}},
		classes:    localObjects[*nodev1.RuntimeClass]{resource: "runtimeclass", pods: map[pod.UID]referrer{}},
		claims:     localObjects[*v1.PersistentVolumeClaim]{resource: "persistentvolumeclaim", pods: map[pod.UID]referrer{}},
		volumes:    localObjects[*v1.PersistentVolume]{resource: "persistentvolume", pods: map[pod.UID]referrer{}},
		bundles:    localObjects[*certificatesv1beta1.ClusterTrustBundle]{resource: "clustertrustbundle", pods: map[pod.UID]referrer{}},
		drivers:    localObjects[*storagev1.CSIDriver]{resource: "csidriver", pods: map[pod.UID]referrer{}},
		sizes:      map[key]resource.Quantity{},
	}
}

// Set replaces the objects. The pods that refer to one that came, changed or went are told.
func (l *Local) Set(d Defined) {
	l.mu.Lock()
	notes := slices.Concat(l.configMaps.set(d.ConfigMaps), l.secrets.set(d.Secrets), l.classes.set(d.RuntimeClasses),
		l.claims.set(d.Claims), l.volumes.set(d.Volumes), l.bundles.set(d.TrustBundles), l.drivers.set(d.Drivers))
	maps.DeleteFunc(l.sizes, func(k key, _ resource.Quantity) bool { return l.claims.objects[k] == nil })
	l.mu.Unlock()
	for _, n := range notes {
		l.journal.Record(n)
		l.changed.Put(n.Subject.UID)
	}
}

// Changed is where the pods appear whose objects changed: a pass over such a pod brings its volumes
// up to date, and starts what waited.
func (l *Local) Changed() *pod.Inbox[pod.UID] { return l.changed }

// Register makes the pod's references those of p.
func (l *Local) Register(p *v1.Pod) {
	configMaps, secrets := references(p)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.configMaps.register(p, p.Namespace, configMaps)
	l.secrets.register(p, p.Namespace, secrets)
	l.classes.register(p, "", classOf(p))
	claims := claimsOf(p)
	l.claims.register(p, p.Namespace, claims)
	delete(l.volumes.pods, p.UID)
	if len(claims) > 0 { // which volume a claim is bound to, a volume may say
		l.volumes.registerAll(p)
	}
	delete(l.drivers.pods, p.UID)
	if len(claims) > 0 || slices.ContainsFunc(p.Spec.Volumes, func(v v1.Volume) bool { return v.CSI != nil }) {
		l.drivers.registerAll(p)
	}
	delete(l.bundles.pods, p.UID)
	if showsTrust(p) { // any bundle may be of the signer that is asked for
		l.bundles.registerAll(p)
	}
}

// Unregister ends all references of the pod.
func (l *Local) Unregister(uid pod.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.configMaps.pods, uid)
	delete(l.secrets.pods, uid)
	delete(l.classes.pods, uid)
	delete(l.claims.pods, uid)
	delete(l.volumes.pods, uid)
	delete(l.bundles.pods, uid)
	delete(l.drivers.pods, uid)
}

// ConfigMap returns the newest copy of a ConfigMap, which is shared and must not be changed. What
// does not exist is a NotFound error of the API.
func (l *Local) ConfigMap(_ context.Context, namespace, name string) (*v1.ConfigMap, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.configMaps.get(namespace, name)
}

// Secret is ConfigMap for Secrets.
func (l *Local) Secret(_ context.Context, namespace, name string) (*v1.Secret, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.secrets.get(namespace, name)
}

// RuntimeHandler returns the handler that the pod's runtimeClassName stands for: that of the
// RuntimeClass of that name, or else the runtime's handler of that name. One that the runtime does
// not have is an error that names those that it has.
func (l *Local) RuntimeHandler(ctx context.Context, p *v1.Pod) (string, error) {
	name := *p.Spec.RuntimeClassName
	l.mu.Lock()
	class, err := l.classes.get("", name)
	classes := slices.Collect(maps.Keys(l.classes.objects))
	l.mu.Unlock()
	handlers, asked := l.handlers(ctx)
	if asked != nil {
		return "", asked
	}
	handlers = slices.DeleteFunc(handlers, func(h string) bool { return h == "" })
	slices.Sort(handlers)
	offered := "none with a name"
	if len(handlers) > 0 {
		offered = strings.Join(handlers, ", ")
	}
	switch {
	case err == nil && slices.Contains(handlers, class.Handler):
		return class.Handler, nil
	case err == nil:
		return "", fmt.Errorf("RuntimeClass %q: the runtime has no handler %q: its handlers are: %s", name, class.Handler, offered)
	case slices.Contains(handlers, name):
		return name, nil
	}
	defined := "none"
	if len(classes) > 0 {
		var names []string
		for _, k := range classes {
			names = append(names, k.name)
		}
		slices.Sort(names)
		defined = strings.Join(names, ", ")
	}
	return "", fmt.Errorf("RuntimeClass %q not found: manifests define: %s; handlers of the runtime, which can be named as well, are: %s", name, defined, offered)
}

// Token always fails: only an API server issues tokens.
func (l *Local) Token(context.Context, *v1.Pod, *v1.ServiceAccountTokenProjection) (string, error) {
	return "", errors.New("service account tokens need an API server: remove the serviceAccountToken source from the volume")
}

// TrustBundle returns the certificates of a source of a volume, as PEM, from the
// ClusterTrustBundles of manifests.
func (l *Local) TrustBundle(_ context.Context, _ *v1.Pod, src *v1.ClusterTrustBundleProjection) ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return selectAnchors(slices.Collect(maps.Values(l.bundles.objects)), src)
}

// PodCertificate always fails: only the signers of a cluster issue certificates.
func (l *Local) PodCertificate(*v1.Pod, string, int) (key, chain []byte, err error) {
	return nil, nil, errors.New("certificates of pods need an API server: remove the podCertificate source from the volume")
}

// Services returns none: only a cluster has services.
func (l *Local) Services(context.Context, *v1.Pod) ([]*v1.Service, error) { return nil, nil }

// set replaces the objects and returns, for each pod, which of those that it refers to are not as
// they were.
func (l *localObjects[P]) set(all []P) []journal.Entry {
	objects := make(map[key]P, len(all))
	for _, o := range all {
		k := key{o.GetNamespace(), o.GetName()}
		objects[k] = o
		// An unchanged object of a file that was edited elsewhere is another copy of the same:
		// nobody is to look at it again.
		if old := l.objects[k]; equality.Semantic.DeepEqual(old, o) {
			objects[k] = old
		}
	}
	before := l.objects
	l.objects = objects
	var notes []journal.Entry
	for _, p := range l.pods {
		keys := p.keys
		if p.all {
			either := maps.Clone(objects)
			maps.Copy(either, before)
			keys = slices.SortedFunc(maps.Keys(either), func(a, b key) int { return strings.Compare(a.name, b.name) })
		}
		for _, k := range keys {
			if before[k] == objects[k] {
				continue
			}
			_, was := before[k]
			_, is := objects[k]
			what := "changed"
			switch {
			case !was:
				what = "is there"
			case !is:
				what = "is gone"
			}
			notes = append(notes, journal.Entry{
				Subject: p.Subject, Component: "objects", Decision: "look again", Why: fmt.Sprintf("%s %s %s", l.resource, k.name, what),
			})
		}
	}
	return notes
}

// register makes the pod's references those in uses, by name.
func (l *localObjects[P]) register(p *v1.Pod, namespace string, uses map[string]use) {
	if len(uses) == 0 {
		delete(l.pods, p.UID)
		return
	}
	r := referrer{Subject: journal.Subject{UID: p.UID, Namespace: p.Namespace, Name: p.Name}}
	for _, name := range slices.Sorted(maps.Keys(uses)) {
		r.keys = append(r.keys, key{namespace, name})
	}
	l.pods[p.UID] = r
}

// registerAll makes the pod refer to every object of the kind.
func (l *localObjects[P]) registerAll(p *v1.Pod) {
	l.pods[p.UID] = referrer{Subject: journal.Subject{UID: p.UID, Namespace: p.Namespace, Name: p.Name}, all: true}
}

// get returns the object, or a NotFound error of the API.
func (l *localObjects[P]) get(namespace, name string) (P, error) {
	o, ok := l.objects[key{namespace, name}]
	if !ok {
		return o, apierrors.NewNotFound(v1.Resource(l.resource), name)
	}
	return o, nil
}
