//go:build e2e

package e2e

import (
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// berth describe says what kubectl describe says, word for word.
func TestClusterDescribe(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.startMember()
	p := withTools(c.helloPod("rich", "serve", "-dir", "/scratch"))
	p.Labels = map[string]string{"app": "rich", "tier": "front"}
	p.Annotations = map[string]string{"short": "value", "long": strings.Repeat("long ", 40), "lines": "one\ntwo\n"}
	always, grace := v1.ContainerRestartPolicyAlways, int64(2)
	p.Spec.TerminationGracePeriodSeconds = &grace
	p.Spec.Tolerations = []v1.Toleration{{Key: "color", Operator: v1.TolerationOpEqual, Value: "blue", Effect: v1.TaintEffectNoSchedule}, {Key: "any", Operator: v1.TolerationOpExists}}
	p.Spec.SecurityContext = &v1.PodSecurityContext{SeccompProfile: &v1.SeccompProfile{Type: v1.SeccompProfileTypeRuntimeDefault}}
	p.Spec.InitContainers = []v1.Container{
		{Name: "setup", Image: helloImage, Args: []string{"exit"}},
		{Name: "side", Image: helloImage, Args: []string{"sleep"}, RestartPolicy: &always},
	}
	size := resource.MustParse("1Mi")
	optional := true
	p.Spec.Volumes = append(
		p.Spec.Volumes,
		v1.Volume{Name: "scratch", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{SizeLimit: &size}}},
		v1.Volume{Name: "settings", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "settings"}, Optional: &optional}}},
		v1.Volume{Name: "keys", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "keys", Optional: &optional}}},
		v1.Volume{Name: "labels", VolumeSource: v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{Items: []v1.DownwardAPIVolumeFile{
			{Path: "labels", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.labels"}},
		}}}},
	)
	main := &p.Spec.Containers[0]
	main.VolumeMounts = append(main.VolumeMounts, v1.VolumeMount{Name: "scratch", MountPath: "/scratch"}, v1.VolumeMount{Name: "scratch", MountPath: "/part", SubPath: "part", ReadOnly: true})
	main.Ports = []v1.ContainerPort{{Name: "http", ContainerPort: 8080}, {ContainerPort: 53, Protocol: v1.ProtocolUDP}}
	main.Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse("10m"), v1.ResourceMemory: resource.MustParse("16Mi")}
	main.Resources.Limits = v1.ResourceList{v1.ResourceMemory: resource.MustParse("64Mi")}
	main.ReadinessProbe = &v1.Probe{ProbeHandler: v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt32(8080)}}}
	main.LivenessProbe = &v1.Probe{ProbeHandler: v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{Port: intstr.FromString("http")}}}
	main.StartupProbe = &v1.Probe{ProbeHandler: v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"/hello", "exit"}}}}
	main.Env = []v1.EnvVar{
		{Name: "PLAIN", Value: "value"},
		{Name: "LINES", Value: "one\ntwo"},
		{Name: "MY_NAME", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.name"}}},
		{Name: "MY_NODE", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "spec.nodeName"}}},
		{Name: "CPUS", ValueFrom: &v1.EnvVarSource{ResourceFieldRef: &v1.ResourceFieldSelector{Resource: "requests.cpu"}}},
		{Name: "KEY", ValueFrom: &v1.EnvVarSource{SecretKeyRef: &v1.SecretKeySelector{LocalObjectReference: v1.LocalObjectReference{Name: "keys"}, Key: "one", Optional: &optional}}},
		{Name: "SETTING", ValueFrom: &v1.EnvVarSource{ConfigMapKeyRef: &v1.ConfigMapKeySelector{LocalObjectReference: v1.LocalObjectReference{Name: "settings"}, Key: "two", Optional: &optional}}},
	}
	main.EnvFrom = []v1.EnvFromSource{{Prefix: "S_", ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: "settings"}, Optional: &optional}}}
	crashed := c.helloPod("crashed", "exit", "3")
	crashed.Spec.RestartPolicy = v1.RestartPolicyNever
	c.create(p, crashed)
	c.awaitAPIReady("rich")
	c.awaitAPI("the pod to fail", func(now pods) bool {
		return now.named("crashed") != nil && now.named("crashed").Status.Phase == v1.PodFailed
	})

	var theirs, ours string
	defer func() {
		if theirs != ours {
			t.Errorf("kubectl (-) and berth (+) differ:\n%s", cmp.Diff(strings.Split(theirs, "\n"), strings.Split(ours, "\n")))
		}
	}()
	for _, name := range []string{"rich", "crashed"} {
		until(t, "both to describe the pod "+name+" alike, after its status is reported", func() bool {
			theirs, _, _ = strings.Cut(c.kubectl("describe", "pod", name), "\nEvents:")
			ours, _, _ = strings.Cut(c.berth("describe", "pod", name, "-n", c.namespace), "\nEvents:")
			return theirs == ours
		})
	}
	lease := regexp.MustCompile(`(?m)^Lease:.*\n`)
	age := regexp.MustCompile(`(?m)(\(\d+%\)) +[0-9smhd]+$`) // which the second of the two finds larger
	until(t, "both to describe the node alike, but for its lease, which the node's own record has not", func() bool {
		theirs, _, _ = strings.Cut(c.kubectl("describe", "node", c.name), "\nEvents:")
		before, rest, _ := strings.Cut(theirs, "Lease:\n")
		_, after, _ := strings.Cut(rest, "Conditions:\n")
		theirs = before + "Conditions:\n" + after
		ours, _, _ = strings.Cut(c.berth("describe", "node"), "\nEvents:")
		ours = lease.ReplaceAllString(ours, "")
		theirs, ours = age.ReplaceAllString(theirs, "$1"), age.ReplaceAllString(ours, "$1")
		return theirs == ours
	})
	wantMatch(t, "the events", c.berth("describe", "pod/rich", "-n", c.namespace), `(?m)^Events:\n  Type +Reason +Age +From +Message\n  ---- +------ +---- +---- +-------\n(.*\n)*  Normal +Started +\S+( \(x\d+ over \S+\))? +kubelet +`)
}
