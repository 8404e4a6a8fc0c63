package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"berth/internal/explain"
	"berth/internal/localapi/kinds"
)

// explainByAPI requests the explanation through the Kubernetes API of a kubeconfig.
func explainByAPI(ctx context.Context, kubeconfig, arg, namespace string) (explain.Report, error) {
	var e explain.Report
	ref, err := parsePodRef(arg, namespace)
	if err != nil {
		return e, err
	}
	loading := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(&clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeconfig}, nil)
	cfg, err := loading.ClientConfig()
	if err != nil {
		return e, fmt.Errorf("--kubeconfig %s: %w", kubeconfig, err)
	}
	current, _, err := loading.Namespace()
	if err != nil {
		return e, fmt.Errorf("--kubeconfig %s: %w", kubeconfig, err)
	}
	cfg.APIPath, cfg.GroupVersion = "/apis", (*schema.GroupVersion)(&kinds.Berth.GroupVersion)
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"}) // for the Status of an error response
	cfg.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.RESTClientFor(cfg)
	if err != nil {
		return e, fmt.Errorf("--kubeconfig %s: %w", kubeconfig, err)
	}
	namespace = cmp.Or(ref.Namespace, current, metav1.NamespaceDefault)
	answer := client.Get().Namespace(namespace).Resource("pods").Name(ref.Name).SubResource("explain").Do(ctx)
	if err := answer.Error(); err != nil { // it has the message of the Status, which Raw lacks
		return e, err
	}
	text, err := answer.Raw()
	if err != nil {
		return e, err
	}
	if err := json.Unmarshal(text, &e); err != nil {
		return e, fmt.Errorf("explanation of pod %s/%s: %w", namespace, ref.Name, err)
	}
	return e, nil
}
