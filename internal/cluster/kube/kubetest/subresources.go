package kubetest

import (
	"fmt"
	"net/http"
	"slices"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// AnswerTokenReviews sets the function that fills in the status of token reviews; without it, no
// token is authenticated.
func (s *Server) AnswerTokenReviews(answer func(*authenticationv1.TokenReview)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reviewToken = answer
}

// AnswerSubjectAccessReviews sets the function that fills in the status of subject access reviews;
// without it, nothing is allowed.
func (s *Server) AnswerSubjectAccessReviews(answer func(*authorizationv1.SubjectAccessReview)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reviewAccess = answer
}

// review answers review objects, which are not stored.
func (e *exchange) review(o object) (answered bool, err error) {
	e.server.mu.Lock()
	token, access := e.server.reviewToken, e.server.reviewAccess
	e.server.mu.Unlock()
	switch o := o.(type) {
	case *authenticationv1.TokenReview:
		token(o)
	case *authorizationv1.SubjectAccessReview:
		access(o)
	default:
		return false, nil
	}
	return true, e.response.send(http.StatusCreated, o)
}

func (e *exchange) createSubresource() error {
	switch {
	case e.kind.plural == "pods" && e.request.Subresource == "binding":
		return e.bind()
	case e.kind.plural == "pods" && e.request.Subresource == "eviction":
		return e.evict()
	case e.kind.plural == "serviceaccounts" && e.request.Subresource == "token":
		return e.issueToken()
	}
	return notFound()
}

func success(code int32) *metav1.Status {
	return &metav1.Status{Status: metav1.StatusSuccess, Code: code}
}

// bind binds a pod to a node, as the scheduler does.
func (e *exchange) bind() error {
	b := &v1.Binding{}
	if err := decode(e.body, b); err != nil {
		return err
	}
	e.server.mu.Lock()
	old, err := e.find()
	if err == nil && old.(*v1.Pod).Spec.NodeName != "" {
		err = apierrors.NewConflict(e.kind.resource(), e.request.Name, fmt.Errorf("pod %s is already assigned to node %q", e.request.Name, old.(*v1.Pod).Spec.NodeName))
	}
	if err == nil {
		p := old.DeepCopyObject().(*v1.Pod)
		p.Spec.NodeName = b.Target.Name
		p.Generation++
		p.Status.Conditions = append(p.Status.Conditions, v1.PodCondition{Type: v1.PodScheduled, Status: v1.ConditionTrue, LastTransitionTime: now()})
		e.server.write(e.server.tables[e.kind], keyOf(p), p, false)
	}
	e.server.mu.Unlock()
	if err != nil {
		return err
	}
	return e.response.send(http.StatusCreated, success(http.StatusCreated))
}

// evict deletes the pod: there are no disruption budgets.
func (e *exchange) evict() error {
	v := &policyv1.Eviction{}
	// The scheme has no Eviction; only its options matter.
	if err := decodeJSON(e.body, v); err != nil {
		return err
	}
	if v.Name != e.request.Name {
		return apierrors.NewBadRequest("name in URL does not match name in Eviction object")
	}
	options := v.DeleteOptions
	if options == nil {
		options = &metav1.DeleteOptions{}
	}
	e.server.mu.Lock()
	old, err := e.find()
	if err == nil {
		_, err = e.remove(old, options)
	}
	e.server.mu.Unlock()
	if err != nil {
		return err
	}
	return e.response.send(http.StatusCreated, success(http.StatusCreated))
}

const (
	defaultTokenLife = 3600 // seconds
	shortestToken    = 600
)

// issueToken creates a unique token without meaning.
func (e *exchange) issueToken() error {
	t := &authenticationv1.TokenRequest{}
	if err := decode(e.body, t); err != nil {
		return err
	}
	if t.Spec.ExpirationSeconds == nil {
		t.Spec.ExpirationSeconds = new(int64(defaultTokenLife))
	}
	if *t.Spec.ExpirationSeconds < shortestToken {
		return apierrors.NewInvalid(schema.GroupKind{Group: authenticationv1.GroupName, Kind: "TokenRequest"}, "",
			field.ErrorList{field.Invalid(field.NewPath("spec", "expirationSeconds"), *t.Spec.ExpirationSeconds, "may not specify a duration less than 10 minutes")})
	}
	e.server.mu.Lock()
	account, err := e.find()
	if err == nil {
		err = e.checkBound(t)
	}
	e.server.tokens++
	number := e.server.tokens
	e.server.mu.Unlock()
	if err != nil {
		return err
	}
	t.Name, t.Namespace, t.CreationTimestamp = account.GetName(), account.GetNamespace(), now()
	t.Status = authenticationv1.TokenRequestStatus{
		Token:               fmt.Sprintf("kubetest.%s.%s.%d", account.GetNamespace(), account.GetName(), number),
		ExpirationTimestamp: metav1.NewTime(now().Add(time.Duration(*t.Spec.ExpirationSeconds) * time.Second)),
	}
	return e.response.send(http.StatusCreated, t)
}

// checkBound rejects a token for a pod that does not exist. Server.mu is held.
func (e *exchange) checkBound(t *authenticationv1.TokenRequest) error {
	ref := t.Spec.BoundObjectRef
	if ref == nil || ref.Kind != "Pod" {
		return nil
	}
	pods := e.server.tables[kindOf[*v1.Pod]()]
	p, ok := pods.objects[types.NamespacedName{Namespace: e.request.Namespace, Name: ref.Name}]
	if !ok {
		return apierrors.NewNotFound(pods.kind.resource(), ref.Name)
	}
	if ref.UID != "" && ref.UID != p.GetUID() {
		return apierrors.NewConflict(pods.kind.resource(), ref.Name,
			fmt.Errorf("the UID in the bound object reference (%s) does not match the UID in record. The object might have been deleted and then recreated", ref.UID))
	}
	return nil
}

// keepApproval accepts only changes of the conditions of a certificate signing request.
func keepApproval(new, old object) error {
	n, isRequest := new.(*certificatesv1.CertificateSigningRequest)
	if !isRequest {
		return notFound()
	}
	conditions := slices.Clone(n.Status.Conditions)
	for i := range conditions {
		if conditions[i].LastUpdateTime.IsZero() {
			conditions[i].LastUpdateTime = now()
		}
		if conditions[i].LastTransitionTime.IsZero() {
			conditions[i].LastTransitionTime = now()
		}
	}
	o := old.(*certificatesv1.CertificateSigningRequest)
	n.Spec, n.Status = o.Spec, o.Status
	n.Status.Conditions = conditions
	return nil
}
