package read_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"berth/internal/localapi/read"
	"berth/internal/localapi/store"
)

// discard is an answer that nobody reads.
type discard struct {
	header http.Header
	size   int
}

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) WriteHeader(int)             {}
func (d *discard) Write(p []byte) (int, error) { d.size += len(p); return len(p), nil }

// pod is one of about 2.5 KB.
func pod(i int) *v1.Pod {
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pod-%05d", i), Namespace: "default", UID: "0d6f1a6c-91ce-4d67-b3a1-6a9b7e3cb2c5", Labels: map[string]string{"app": "web", "number": fmt.Sprint(i)}},
		Spec:       v1.PodSpec{NodeName: "node", RestartPolicy: v1.RestartPolicyAlways, ServiceAccountName: "default"},
		Status:     v1.PodStatus{Phase: v1.PodRunning, PodIP: "10.0.0.1", PodIPs: []v1.PodIP{{IP: "10.0.0.1"}}},
	}
	for _, name := range []string{"web", "log"} {
		p.Spec.Containers = append(p.Spec.Containers, v1.Container{
			Name: name, Image: "registry.example.com/team/" + name + ":1.2.3", Command: []string{"/bin/" + name, "--verbose"},
			Env:          []v1.EnvVar{{Name: "A", Value: "one"}, {Name: "B", Value: "two"}, {Name: "C", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "status.podIP"}}}},
			Resources:    v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("100m"), v1.ResourceMemory: resource.MustParse("64Mi")}},
			VolumeMounts: []v1.VolumeMount{{Name: "token", MountPath: "/var/run/secrets/kubernetes.io/serviceaccount", ReadOnly: true}},
		})
		p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, v1.ContainerStatus{
			Name: name, Ready: true, Image: "registry.example.com/team/" + name + ":1.2.3", ContainerID: "containerd://4a3b8f1e6d1c4a3b8f1e6d1c4a3b8f1e6d1c4a3b8f1e6d1c", State: v1.ContainerState{Running: &v1.ContainerStateRunning{}},
		})
	}
	for _, c := range []v1.PodConditionType{v1.PodReady, v1.PodInitialized, v1.ContainersReady, v1.PodScheduled} {
		p.Status.Conditions = append(p.Status.Conditions, v1.PodCondition{Type: c, Status: v1.ConditionTrue})
	}
	p.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl", Operation: "Update", APIVersion: "v1", FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(
		`{"f:metadata":{"f:labels":{".":{},"f:app":{},"f:number":{}}},"f:spec":{"f:containers":{"k:{\"name\":\"web\"}":{".":{},"f:command":{},"f:env":{".":{},"k:{\"name\":\"A\"}":{".":{},"f:name":{},"f:value":{}},"k:{\"name\":\"B\"}":{".":{},"f:name":{},"f:value":{}}},"f:image":{},"f:imagePullPolicy":{},"f:name":{},"f:resources":{".":{},"f:requests":{".":{},"f:cpu":{},"f:memory":{}}}}},"f:restartPolicy":{}}}`,
	)}}
	return p
}

// BenchmarkList lists 5,000 pods. The goal is 0.3 s for JSON and for protobuf.
func BenchmarkList(b *testing.B) {
	s, err := store.Open(store.Config{Path: b.TempDir() + "/api.db"})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	for i := range 5000 {
		value, err := encode(pod(i))
		if err != nil {
			b.Fatal(err)
		}
		if _, err := s.Write(store.Key{Resource: "pods", Namespace: "default", Name: fmt.Sprintf("pod-%05d", i)}, 0, value); err != nil {
			b.Fatal(err)
		}
	}
	h := read.New(read.Config{Store: s})
	for name, accept := range map[string]string{
		"json": runtime.ContentTypeJSON, "protobuf": runtime.ContentTypeProtobuf,
		"table": "application/json;as=Table;g=meta.k8s.io;v=v1", "metadata": runtime.ContentTypeProtobuf + ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
	} {
		for _, query := range []string{"", "?labelSelector=number%3D77", "?fieldSelector=spec.nodeName%3Dother", "?limit=500", "?fieldSelector=metadata.name%3Dpod-04000"} {
			b.Run(name+query, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					r, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "/api/v1/namespaces/default/pods"+query, http.NoBody)
					if err != nil {
						b.Fatal(err)
					}
					r.Header.Set("Accept", accept)
					d := &discard{header: http.Header{}}
					h.ServeHTTP(d, r)
					b.ReportMetric(float64(d.size), "B/answer")
				}
			})
		}
	}
}
