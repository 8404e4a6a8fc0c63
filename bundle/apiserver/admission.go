//go:build apiserver

package main

import (
	"context"
	"io"

	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/plugin/pkg/admission/defaulttolerationseconds"
	"k8s.io/kubernetes/plugin/pkg/admission/nodedeclaredfeatures"
	"k8s.io/kubernetes/plugin/pkg/admission/podresize"
	"k8s.io/kubernetes/plugin/pkg/admission/podtopologylabels"
	"k8s.io/kubernetes/plugin/pkg/admission/priority"
	"k8s.io/kubernetes/plugin/pkg/admission/runtimeclass"
	"k8s.io/kubernetes/plugin/pkg/admission/serviceaccount"
	"k8s.io/kubernetes/plugin/pkg/admission/storage/persistentvolume/resize"
	"k8s.io/kubernetes/plugin/pkg/admission/storage/storageclass/setdefault"
	"k8s.io/kubernetes/plugin/pkg/admission/storage/storageobjectinuseprotection"
)

// plugins are the admission plugins, in kube-apiserver's order. Of its defaults these are omitted:
//
//   - plugins for kinds that do not exist here: LimitRanger, ResourceQuota, DefaultIngressClass,
//     CertificateApproval, CertificateSigning, CertificateSubjectRestriction,
//     ClusterTrustBundleAttest, PodGroupProtection, PodGroupWorkloadExists, JobValidation, the
//     webhooks and the policies;
//   - TaintNodesByCondition: the controller that removes its taint does not exist here;
//   - PodSecurity: it caches all pods in memory.
var plugins = []struct {
	name     string
	register func(*admission.Plugins)
}{
	{lifecycle.PluginName, lifecycle.Register},
	{serviceaccount.PluginName, serviceaccount.Register},
	{priority.PluginName, priority.Register},
	{defaulttolerationseconds.PluginName, defaulttolerationseconds.Register},
	{setdefault.PluginName, setdefault.Register},
	{storageobjectinuseprotection.PluginName, storageobjectinuseprotection.Register},
	{resize.PluginName, resize.Register},
	{runtimeclass.PluginName, runtimeclass.Register},
	{nodeNamePlugin, nil},
	{podtopologylabels.PluginName, podtopologylabels.Register},
	{nodedeclaredfeatures.PluginName, nodedeclaredfeatures.Register},
	{podresize.PluginName, podresize.Register},
}

// newAdmission creates the plugins. The caller starts the informers.
func newAdmission(ctx context.Context, node string, clients kubernetes.Interface, shared informers.SharedInformerFactory) (admission.Interface, error) {
	all := admission.NewPlugins()
	var names []string
	for _, p := range plugins {
		names = append(names, p.name)
		if p.register != nil {
			p.register(all)
		}
	}
	all.Register(nodeNamePlugin, func(io.Reader) (admission.Interface, error) { return newNodeName(node), nil })
	return all.NewFromPlugins(names, unconfigured{}, initializer.New(clients, nil, shared, authorizerfactory.NewAlwaysAllowAuthorizer(),
		utilfeature.DefaultFeatureGate, compatibility.DefaultBuildEffectiveVersion(), ctx.Done(), nil), nil)
}

// unconfigured gives each plugin its defaults.
type unconfigured struct{}

// ConfigFor returns no configuration.
func (unconfigured) ConfigFor(string) (io.Reader, error) { return nil, nil }
