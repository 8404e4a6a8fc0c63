//go:build e2e && kubelet

package e2e

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"berth/internal/resources/devicemanager/devicetest"
)

const swapDevice = "example.com/null"

// swapPods are pods of all sorts.
type swapPods struct {
	running []string // they stay ready
	ended   []string // they stay as they are, in whatever phase
	port    int      // of the host
}

const goOn = "trap 'exit 0' TERM; while :; do /usr/bin/sleep 0.2; done"

// pod returns a pod that goes on, changed.
func (s *swapNode) pod(name string, change func(*v1.Pod, *v1.Container)) *v1.Pod {
	p := s.helloPod(name, "serve")
	change(p, &p.Spec.Containers[0])
	return p
}

func (s *swapNode) shellPod(name, script string, change func(*v1.Pod, *v1.Container)) *v1.Pod {
	p := shell(s.helloPod(name), script)
	change(p, &p.Spec.Containers[0])
	return p
}

func asIs(*v1.Pod, *v1.Container) {}

func quantities(of ...string) v1.ResourceList {
	list := v1.ResourceList{}
	for i := 0; i < len(of); i += 2 {
		list[v1.ResourceName(of[i])] = resource.MustParse(of[i+1])
	}
	return list
}

func mountInto(p *v1.Pod, c *v1.Container, source v1.VolumeSource, m v1.VolumeMount) {
	p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: m.Name, VolumeSource: source})
	c.VolumeMounts = append(c.VolumeMounts, m)
}

// makePods makes the pods, and returns when they are as they stay.
func (s *swapNode) makePods() swapPods {
	s.t.Helper()
	made := swapPods{port: freePort(s.t)}
	// The pod reader. The only CPU that is not reserved is for another one.
	s.apply(strings.Replace(objectsManifest, "cpu: 500m}", "cpu: 500m}, requests: {cpu: 0}", 1))
	s.apply(strings.ReplaceAll(draManifest, "THE_NODE", s.name))
	made.running = append(made.running, "reader")
	run := func(p *v1.Pod) {
		s.create(p)
		made.running = append(made.running, p.Name)
	}
	for _, p := range s.podsOfNetwork(made.port) {
		run(p)
	}
	for _, p := range s.podsOfVolumes() {
		run(p)
	}
	for _, p := range s.podsOfLife() {
		run(p)
	}
	for _, p := range s.podsOfShares() {
		run(p)
	}
	ended := []*v1.Pod{
		s.pod("done", func(p *v1.Pod, c *v1.Container) {
			p.Spec.RestartPolicy, c.Args = v1.RestartPolicyNever, []string{"exit", "0"}
		}),
		s.shellPod("failed", "echo why > /dev/termination-log; exit 3", func(p *v1.Pod, _ *v1.Container) { p.Spec.RestartPolicy = v1.RestartPolicyNever }),
		s.shellPod("crashing", "echo crashed; echo crashed > /dev/termination-log; exit 7", asIs),
		s.shellPod("beginning", "exit 0", func(p *v1.Pod, c *v1.Container) {
			first := *c.DeepCopy()
			first.Name, first.Command = "first", []string{"/usr/bin/sh", "-c", goOn}
			p.Spec.InitContainers = []v1.Container{first}
		}),
	}
	for _, p := range ended {
		made.ended = append(made.ended, p.Name)
	}
	s.create(ended...)
	s.apply(fmt.Sprintf(`apiVersion: batch/v1
kind: Job
metadata: {name: job}
spec:
  template:
    metadata: {labels: {app: job}}
    spec:
      nodeName: THE_NODE
      restartPolicy: Never
      containers: [{name: main, image: %q, args: [exit, "0"]}]
`, helloImage))
	s.write("static.yaml", fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: static, namespace: %s}\nspec:\n  containers: [{name: main, image: %q, args: [serve]}]\n", s.namespace, helloImage))
	made.running = append(made.running, "static-"+s.name)
	now := s.awaitAPI("all pods to be as they stay", func(p pods) bool {
		return p.ready(made.running...) && p.inPhase("done", v1.PodSucceeded) && p.inPhase("failed", v1.PodFailed) &&
			container(p.named("crashing"), "main").RestartCount >= 2 && container(p.named("again"), "main").RestartCount == 1
	})
	s.t.Logf("%d pods are there", len(now))
	return made
}

// unmakePods ends all pods, and returns when nothing of them is left.
func (s *swapNode) unmakePods() {
	s.t.Helper()
	s.remove("static.yaml")
	s.kubectl("delete", "job,pod", "--all", "--wait=false", "--grace-period=1")
	s.awaitAPI("all pods to be gone", func(p pods) bool { return len(p) == 0 })
	until(s.t, "all sandboxes to be gone", func() bool {
		left, err := s.cri().ListPodSandbox(s.ctx, &runtimeapi.ListPodSandboxRequest{})
		return err == nil && len(left.Items) == 0
	})
}

// podsOfNetwork are pods that are probed, with a port of the host, and in its network.
func (s *swapNode) podsOfNetwork(port int) []*v1.Pod {
	// With time to answer: a busy machine is no reason to become unready.
	check := func(path string) *v1.Probe {
		return &v1.Probe{PeriodSeconds: 1, TimeoutSeconds: 10, ProbeHandler: v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Path: path, Port: intstr.FromInt32(8080)}}}
	}
	return []*v1.Pod{
		s.pod("web", func(_ *v1.Pod, c *v1.Container) {
			c.ReadinessProbe, c.LivenessProbe, c.StartupProbe = check("/"), check("/"), check("/")
			c.StartupProbe.FailureThreshold, c.LivenessProbe.FailureThreshold = 60, 60
			c.Ports = []v1.ContainerPort{{Name: "http", ContainerPort: 8080}}
		}),
		s.pod("slow", func(_ *v1.Pod, c *v1.Container) {
			c.ReadinessProbe = check("/")
			c.ReadinessProbe.InitialDelaySeconds, c.ReadinessProbe.PeriodSeconds, c.ReadinessProbe.SuccessThreshold = 5, 10, 2
		}),
		s.pod("hostport", func(_ *v1.Pod, c *v1.Container) {
			c.Ports = []v1.ContainerPort{{ContainerPort: 8080, HostPort: int32(port)}}
		}),
		s.pod("hostnet", func(p *v1.Pod, c *v1.Container) {
			p.Spec.HostNetwork, c.Args = true, []string{"sleep"}
		}),
		s.pod("named", func(p *v1.Pod, c *v1.Container) {
			p.Spec.Hostname, p.Spec.Subdomain = "other", "sub"
			p.Spec.HostAliases = []v1.HostAlias{{IP: "192.0.2.7", Hostnames: []string{"seven"}}}
			p.Spec.DNSConfig = &v1.PodDNSConfig{Searches: []string{"example.com"}}
		}),
	}
}

// podsOfVolumes are pods that have written into volumes.
func (s *swapNode) podsOfVolumes() []*v1.Pod {
	file := "echo kept > /data/file; " + goOn
	return []*v1.Pod{
		s.shellPod("emptydir", file, func(p *v1.Pod, c *v1.Container) {
			mountInto(p, c, v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{SizeLimit: ptr.To(resource.MustParse("8Mi"))}}, v1.VolumeMount{Name: "data", MountPath: "/data"})
		}),
		s.shellPod("memory", file, func(p *v1.Pod, c *v1.Container) {
			mountInto(p, c, v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}}, v1.VolumeMount{Name: "data", MountPath: "/data"})
		}),
		s.shellPod("subpath", file, func(p *v1.Pod, c *v1.Container) {
			mountInto(p, c, v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}, v1.VolumeMount{Name: "data", MountPath: "/data", SubPath: "a/b"})
			mountInto(p, c, v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "conf"}}},
				v1.VolumeMount{Name: "conf", MountPath: "/conf.txt", SubPath: "file.txt"})
		}),
		s.shellPod("grouped", file, func(p *v1.Pod, c *v1.Container) {
			p.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr.To[int64](2000), RunAsUser: ptr.To[int64](1000)}
			mountInto(p, c, v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}, v1.VolumeMount{Name: "data", MountPath: "/data"})
			mountInto(p, c, v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "keys", DefaultMode: ptr.To[int32](0o400)}}, v1.VolumeMount{Name: "keys", MountPath: "/keys"})
		}),
	}
}

// podsOfLife are pods with hooks, init containers and sidecars, and one that was restarted.
func (s *swapNode) podsOfLife() []*v1.Pod {
	return []*v1.Pod{
		s.pod("sidecar", func(p *v1.Pod, _ *v1.Container) {
			side := v1.Container{Name: "side", Image: helloImage, Args: []string{"serve", "-port", "8081"}, RestartPolicy: ptr.To(v1.ContainerRestartPolicyAlways)}
			side.StartupProbe = &v1.Probe{PeriodSeconds: 1, ProbeHandler: v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{Port: intstr.FromInt32(8081)}}}
			p.Spec.InitContainers = []v1.Container{side, {Name: "first", Image: helloImage, Args: []string{"exit", "0"}}}
		}),
		s.shellPod("hooks", goOn, func(p *v1.Pod, c *v1.Container) {
			p.Spec.TerminationGracePeriodSeconds = ptr.To[int64](7)
			hook := &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"/usr/bin/true"}}}
			c.Lifecycle = &v1.Lifecycle{PostStart: hook, PreStop: hook}
			c.ReadinessProbe = &v1.Probe{PeriodSeconds: 1, ProbeHandler: v1.ProbeHandler{Exec: hook.Exec}}
		}),
		s.shellPod("again", "if test -e /data/run; then "+goOn+"; fi; /usr/bin/touch /data/run; echo first > /dev/termination-log; exit 4", func(p *v1.Pod, c *v1.Container) {
			mountInto(p, c, v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}, v1.VolumeMount{Name: "data", MountPath: "/data"})
		}),
		s.pod("limited", func(_ *v1.Pod, c *v1.Container) {
			c.Resources = v1.ResourceRequirements{Limits: quantities("cpu", "300m", "memory", "64Mi"), Requests: quantities("cpu", "0", "memory", "16Mi")}
			c.ResizePolicy = []v1.ContainerResizePolicy{{ResourceName: v1.ResourceCPU, RestartPolicy: v1.RestartContainer}}
			c.SecurityContext = &v1.SecurityContext{AllowPrivilegeEscalation: ptr.To(false), ReadOnlyRootFilesystem: ptr.To(true), Capabilities: &v1.Capabilities{Drop: []v1.Capability{"ALL"}}}
		}),
		s.pod("shared", func(p *v1.Pod, c *v1.Container) {
			p.Spec.ShareProcessNamespace = ptr.To(true)
			second := *c.DeepCopy()
			second.Name, second.Args = "second", []string{"serve", "-port", "8082"}
			p.Spec.Containers = append(p.Spec.Containers, second)
		}),
		s.pod("tty", func(_ *v1.Pod, c *v1.Container) { c.Stdin, c.TTY = true, true }),
	}
}

// podsOfShares are pods with CPUs and memory, a device and a claim of their own.
func (s *swapNode) podsOfShares() []*v1.Pod {
	return []*v1.Pod{
		s.shellPod("pinned", goOn, func(_ *v1.Pod, c *v1.Container) {
			c.Resources.Limits = quantities("cpu", "1", "memory", "64Mi")
		}),
		s.shellPod("device", goOn, func(_ *v1.Pod, c *v1.Container) { c.Resources.Limits = quantities(swapDevice, "1") }),
		s.shellPod("claim", goOn, func(p *v1.Pod, c *v1.Container) {
			p.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "card", ResourceClaimTemplateName: ptr.To("card")}}
			c.Resources.Claims = []v1.ResourceClaim{{Name: "card"}}
		}),
	}
}

// startDrivers starts a device plugin and a DRA driver.
func (s *swapNode) startDrivers() (*devicePlugin, *draDriver) {
	s.t.Helper()
	plugin := s.newDevicePlugin(swapDevice, devicetest.Device{ID: "n0", Host: "/dev/null"}, devicetest.Device{ID: "n1", Host: "/dev/zero"})
	driver := s.newDRADriver(s.name + ".dra.example.com")
	s.t.Cleanup(func() {
		s.tidy("delete", "--ignore-not-found", "--wait=false", "deviceclass/"+s.name, "resourceslice/"+s.name+"-dra")
	})
	plugin.start()
	driver.start()
	s.awaitDevices(swapDevice, "2", "2")
	return plugin, driver
}
