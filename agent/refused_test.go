package agent_test

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/agent/agenttest"
	"berth/internal/cluster/kube/kubetest"
)

// A pod that was refused and is deleted before the API server has heard of the refusal goes as any
// other that has ended: nobody else would end it.
func TestRefusedPodIsDeleted(t *testing.T) {
	for _, f := range []struct {
		name   string
		effect kubetest.Effect // of all tries to tell of the refusal after the first ones, which fail
	}{
		{"not told", failing},
		{"being told", kubetest.Delay(10 * time.Second)},
	} {
		t.Run(f.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { deleteRefused(t, f.effect) })
		})
	}
}

var failing = kubetest.Answer(http.StatusInternalServerError, metav1.StatusReasonInternalError, "etcd has no leader")

func deleteRefused(t *testing.T, effect kubetest.Effect) {
	w := agenttest.New(t)
	w.Join()
	w.Settle(time.Minute)
	w.API.Inject(kubetest.Fault{Verb: "patch", Resource: "pods", Subresource: "status", Times: 3, Then: failing})
	w.API.Inject(kubetest.Fault{Verb: "patch", Resource: "pods", Subresource: "status", Then: effect})
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"}}
	p.Spec = v1.PodSpec{
		NodeName: agenttest.NodeName, NodeSelector: map[string]string{"disk": "ssd"}, Containers: []v1.Container{{Name: "main", Image: agenttest.Image}},
	}
	kubetest.Put(w.API, p)
	w.Settle(3 * time.Second)
	kubetest.Delete[*v1.Pod](w.API, "default", "web", metav1.DeleteOptions{})
	w.Settle(time.Second)
	if _, ok := kubetest.Get[*v1.Pod](w.API, "default", "web"); !ok {
		t.Fatal("the pod went before anybody said that it has ended")
	}
	w.API.Heal()
	w.Settle(5 * time.Minute)
	if p, ok := kubetest.Get[*v1.Pod](w.API, "default", "web"); ok {
		t.Errorf("the API server still shows the pod: %s, to be deleted at %s", p.Status.Phase, p.DeletionTimestamp)
	}
}
