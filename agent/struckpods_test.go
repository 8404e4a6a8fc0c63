package agent_test

import (
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/agent/agenttest"
	"berth/internal/resources/devicemanager/checkpoint"
)

// serverPod is a pod with all that makes an agent call.
func serverPod() *v1.Pod {
	p := keptPod()
	always := v1.ContainerRestartPolicyAlways
	check := &v1.Probe{ProbeHandler: v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"check"}}}, PeriodSeconds: 10, TimeoutSeconds: 1, SuccessThreshold: 1, FailureThreshold: 3}
	p.Spec.InitContainers = []v1.Container{
		{Name: "init", Image: agenttest.Image},
		{Name: "side", Image: agenttest.Image, RestartPolicy: &always},
	}
	p.Spec.Containers = []v1.Container{{
		Name: "main", Image: agenttest.Image, ImagePullPolicy: v1.PullAlways, ReadinessProbe: check,
		Lifecycle: &v1.Lifecycle{PreStop: &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"bye"}}}},
	}}
	return p
}

const driverName = "csi.example.com"

// ownVolumesPod is a pod with an image, and a volume that comes and goes with it.
func ownVolumesPod() *v1.Pod {
	p := keptPod()
	p.Spec.Volumes = []v1.Volume{
		{Name: "own", VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{VolumeClaimTemplate: &v1.PersistentVolumeClaimTemplate{
			Spec: v1.PersistentVolumeClaimSpec{AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}},
		}}}},
		{Name: "image", VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: agenttest.Image, PullPolicy: v1.PullAlways}}},
	}
	p.Spec.Containers = []v1.Container{{
		Name: "main", Image: agenttest.Image, VolumeMounts: []v1.VolumeMount{{Name: "own", MountPath: "/own"}, {Name: "image", MountPath: "/image"}},
	}}
	return p
}

const deviceName = "example.com/gpu"

// devicesPod is a pod whose containers have devices, some one after the other.
func devicesPod() *v1.Pod {
	p := keptPod()
	want := func(n string) v1.ResourceRequirements {
		return v1.ResourceRequirements{Limits: v1.ResourceList{deviceName: resource.MustParse(n)}, Requests: v1.ResourceList{deviceName: resource.MustParse(n)}}
	}
	p.Spec.InitContainers = []v1.Container{{Name: "init", Image: agenttest.Image, Resources: want("1")}}
	p.Spec.Containers = []v1.Container{{Name: "main", Image: agenttest.Image, Resources: want("2")}}
	return p
}

// devicesInFile returns how many containers have devices by what the agent has on disk.
func (w *struckWorld) devicesInFile() int {
	content, err := os.ReadFile(filepath.Join(w.Root(), "device-plugins", "kubelet_internal_checkpoint"))
	if err != nil {
		w.T.Error(err)
	}
	d, err := checkpoint.Decode(content)
	if err != nil {
		w.T.Error(err)
	}
	return len(d.PodDeviceEntries)
}

// waitingPod is a pod whose start does not end.
func waitingPod() *v1.Pod {
	p := keptPod()
	p.Spec.InitContainers = []v1.Container{{Name: "wait", Image: agenttest.Image}}
	p.Spec.Containers = []v1.Container{{Name: "main", Image: agenttest.Image}}
	return p
}

func jobPod() *v1.Pod {
	p := keptPod()
	p.Spec.RestartPolicy = v1.RestartPolicyNever
	p.Spec.Containers = []v1.Container{{Name: "job", Image: agenttest.Image}}
	return p
}

// keptPod is a pod that stays at the API server when it was deleted, for what its last status says.
func keptPod() *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: v1.NamespaceDefault, Finalizers: []string{"berth.local/test"}},
		Spec:       v1.PodSpec{NodeName: agenttest.NodeName},
	}
}
