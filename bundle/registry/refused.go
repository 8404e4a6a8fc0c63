//go:build registry

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

// errAgent is what requests are answered that the agent has to answer itself.
var errAgent = &apierrors.StatusError{ErrStatus: metav1.Status{
	Status: metav1.StatusFailure, Code: http.StatusNotImplemented, Reason: "NotImplemented",
	Message: "the agent answers this itself, and should not have passed it on to its registry",
}}

// noReviews refuses to review what somebody may, or who he is.
type noReviews struct{ reviewer }

// reviewer is what the registries of reviews are.
type reviewer interface {
	rest.Storage
	rest.Creater
	rest.Scoper
	rest.SingularNameProvider
}

// Create refuses.
func (noReviews) Create(context.Context, runtime.Object, rest.ValidateObjectFunc, *metav1.CreateOptions) (runtime.Object, error) {
	return nil, errAgent
}

// noKubelet refuses log, exec, attach and port-forward.
type noKubelet struct{}

// GetConnectionInfo refuses.
func (noKubelet) GetConnectionInfo(context.Context, types.NodeName) (*client.ConnectionInfo, error) {
	return nil, errAgent
}

// noNodeProxy refuses what is sent to nodes: its registry would connect to their addresses.
type noNodeProxy struct{ *noderest.ProxyREST }

// Connect refuses.
func (*noNodeProxy) Connect(context.Context, string, runtime.Object, rest.Responder) (http.Handler, error) {
	return nil, errAgent
}

// noTransport refuses what is sent to pods.
type noTransport struct{}

// RoundTrip refuses.
func (noTransport) RoundTrip(*http.Request) (*http.Response, error) { return nil, errAgent }

// noTokens refuses to sign tokens. Its generator is never called.
type noTokens struct{ *accountstorage.TokenREST }

// neverCalled has the registry of service accounts have tokens.
type neverCalled struct{ serviceaccount.TokenGenerator }

// Create refuses.
func (*noTokens) Create(context.Context, string, runtime.Object, rest.ValidateObjectFunc, *metav1.CreateOptions) (runtime.Object, error) {
	return nil, errAgent
}

// noBudgets has no budgets, so that an eviction is the deletion that it asks for.
type noBudgets struct {
	policyclient.PodDisruptionBudgetInterface // whose other calls are for budgets that are there
}

// PodDisruptionBudgets returns those of a namespace.
func (n noBudgets) PodDisruptionBudgets(string) policyclient.PodDisruptionBudgetInterface { return n }

// List returns none.
func (noBudgets) List(context.Context, metav1.ListOptions) (*policyv1.PodDisruptionBudgetList, error) {
	return &policyv1.PodDisruptionBudgetList{}, nil
}

// Get finds none.
func (noBudgets) Get(_ context.Context, name string, _ metav1.GetOptions) (*policyv1.PodDisruptionBudget, error) {
	return nil, apierrors.NewNotFound(policyv1.Resource("poddisruptionbudgets"), name)
}
