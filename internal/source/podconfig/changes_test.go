package podconfig

import (
	"testing"

	v1 "k8s.io/api/core/v1"
)

func TestDescribeChanges(t *testing.T) {
	base := func() *v1.Pod {
		return &v1.Pod{Spec: v1.PodSpec{
			NodeName: "n",
			Containers: []v1.Container{
				{Name: "web", Image: "web:1", Env: []v1.EnvVar{{Name: "PASSWORD", Value: "one"}}, Args: []string{"a"}},
				{Name: "side", Image: "side:1"},
			},
			Volumes: []v1.Volume{
				{Name: "a", VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: "d", VolumeAttributes: map[string]string{"token": "old"}}}},
				{Name: "b", VolumeSource: v1.VolumeSource{FlexVolume: &v1.FlexVolumeSource{Driver: "f", Options: map[string]string{"token": "old"}}}},
			},
		}}
	}
	for _, c := range []struct {
		name   string
		change func(*v1.Pod)
		want   string
	}{
		{"a value", func(p *v1.Pod) { p.Spec.Containers[0].Image = "web:2" }, `spec.containers[web].image "web:1" → "web:2"`},
		{"a value that was not there", func(p *v1.Pod) { p.Spec.Hostname = "h" }, `spec.hostname set to "h"`},
		{"a value that is there no more", func(p *v1.Pod) { p.Spec.NodeName = "" }, `spec.nodeName "n" taken away`},
		{"the order of containers", func(p *v1.Pod) {
			p.Spec.Containers[0], p.Spec.Containers[1] = p.Spec.Containers[1], p.Spec.Containers[0]
		}, "spec"},
		{"what may be secret", func(p *v1.Pod) {
			p.Spec.Containers[0].Env[0].Value, p.Spec.Containers[0].Args = "two", []string{"b"}
		}, "spec.containers[web].args changed; spec.containers[web].env changed"},
		{"what drivers are given", func(p *v1.Pod) {
			p.Spec.Volumes[0].CSI.VolumeAttributes["token"], p.Spec.Volumes[1].FlexVolume.Options["token"] = "new", "new"
		}, "spec.volumes[a].csi.volumeAttributes changed; spec.volumes[b].flexVolume.options changed"},
		{"a container", func(p *v1.Pod) { p.Spec.Containers = p.Spec.Containers[:1] }, "spec.containers[side] (47 bytes) taken away"},
		{"labels", func(p *v1.Pod) { p.Labels = map[string]string{"a": "b"} }, "labels"},
		{"many", func(p *v1.Pod) {
			p.Spec.Hostname, p.Spec.Subdomain, p.Spec.NodeName, p.Spec.SchedulerName = "a", "b", "c", "d"
			p.Spec.PriorityClassName, p.Spec.ServiceAccountName = "e", "f"
		}, `spec.hostname set to "a"; spec.nodeName "n" → "c"; spec.priorityClassName set to "e"; spec.schedulerName set to "d"; spec.serviceAccountName set to "f"; and 1 more`},
	} {
		t.Run(c.name, func(t *testing.T) {
			now := base()
			c.change(now)
			if got := describeChanges(base(), now); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}
