//go:build apiserver

package main

import (
	"context"
	"net/http"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/registry/rest"
	policyclient "k8s.io/client-go/kubernetes/typed/policy/v1"
	"k8s.io/kubernetes/pkg/kubelet/client"
	noderest "k8s.io/kubernetes/pkg/registry/core/node/rest"
	accountstorage "k8s.io/kubernetes/pkg/registry/core/serviceaccount/storage"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

// errAgent is the response to requests that only the agent can serve.
var errAgent = &apierrors.StatusError{ErrStatus: metav1.Status{
	Status: metav1.StatusFailure, Code: http.StatusNotImplemented, Reason: "NotImplemented",
	Message: "the agent answers this itself, and should not have passed it on to its API writer",
}}

// noReviews rejects access and token reviews.
type noReviews struct{ reviewer }

// reviewer is the interface of the registries of reviews.
type reviewer interface {
	rest.Storage
	rest.Creater
	rest.Scoper
	rest.SingularNameProvider
}

// Create returns errAgent.
func (noReviews) Create(context.Context, runtime.Object, rest.ValidateObjectFunc, *metav1.CreateOptions) (runtime.Object, error) {
	return nil, errAgent
}

// noKubelet rejects log, exec, attach and port-forward.
type noKubelet struct{}

// GetConnectionInfo returns errAgent.
func (noKubelet) GetConnectionInfo(context.Context, types.NodeName) (*client.ConnectionInfo, error) {
	return nil, errAgent
}

// noNodeProxy rejects requests to nodes: its registry would connect to their addresses.
type noNodeProxy struct{ *noderest.ProxyREST }

// Connect returns errAgent.
func (*noNodeProxy) Connect(context.Context, string, runtime.Object, rest.Responder) (http.Handler, error) {
	return nil, errAgent
}

// noTransport rejects requests to pods.
type noTransport struct{}

// RoundTrip returns errAgent.
func (noTransport) RoundTrip(*http.Request) (*http.Response, error) { return nil, errAgent }

// noTokens rejects token requests. Its generator is never called.
type noTokens struct{ *accountstorage.TokenREST }

// neverCalled enables tokens in the registry of service accounts.
type neverCalled struct{ serviceaccount.TokenGenerator }

// Create returns errAgent.
func (*noTokens) Create(context.Context, string, runtime.Object, rest.ValidateObjectFunc, *metav1.CreateOptions) (runtime.Object, error) {
	return nil, errAgent
}

// noBudgets has no pod disruption budgets, so that an eviction deletes the pod.
type noBudgets struct {
	policyclient.PodDisruptionBudgetInterface // other calls need an existing budget
}

// PodDisruptionBudgets returns the receiver for each namespace.
func (n noBudgets) PodDisruptionBudgets(string) policyclient.PodDisruptionBudgetInterface { return n }

// List returns an empty list.
func (noBudgets) List(context.Context, metav1.ListOptions) (*policyv1.PodDisruptionBudgetList, error) {
	return &policyv1.PodDisruptionBudgetList{}, nil
}

// Get returns NotFound.
func (noBudgets) Get(_ context.Context, name string, _ metav1.GetOptions) (*policyv1.PodDisruptionBudget, error) {
	return nil, apierrors.NewNotFound(policyv1.Resource("poddisruptionbudgets"), name)
}
