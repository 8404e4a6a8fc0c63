package crispec

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"berth/internal/record/events/messagestest"
)

func configMapRef(name string, optional bool) v1.EnvFromSource {
	return v1.EnvFromSource{ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: name}, Optional: &optional}}
}

func secretRef(name, prefix string, optional bool) v1.EnvFromSource {
	return v1.EnvFromSource{Prefix: prefix, SecretRef: &v1.SecretEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: name}, Optional: &optional}}
}

func configMapKey(env, name, key string, optional bool) v1.EnvVar {
	return v1.EnvVar{Name: env, ValueFrom: &v1.EnvVarSource{ConfigMapKeyRef: &v1.ConfigMapKeySelector{
		LocalObjectReference: v1.LocalObjectReference{Name: name}, Key: key, Optional: &optional,
	}}}
}

func secretKey(env, name, key string, optional bool) v1.EnvVar {
	return v1.EnvVar{Name: env, ValueFrom: &v1.EnvVarSource{SecretKeyRef: &v1.SecretKeySelector{
		LocalObjectReference: v1.LocalObjectReference{Name: name}, Key: key, Optional: &optional,
	}}}
}

func service(namespace, name, ip string, ports ...v1.ServicePort) *v1.Service {
	s := &v1.Service{Spec: v1.ServiceSpec{ClusterIP: ip, Ports: ports}}
	s.Namespace, s.Name = namespace, name
	return s
}

var (
	apiServer  = service("default", "kubernetes", "10.0.0.1", v1.ServicePort{Name: "https", Port: 443, Protocol: v1.ProtocolTCP})
	testObject = Environment{
		ConfigMaps: map[string]*v1.ConfigMap{"cm": {Data: map[string]string{"B": "b", "A": "a", "odd.key-1": "o"}, BinaryData: map[string][]byte{"BIN": {1}}}},
		Secrets:    map[string]*v1.Secret{"s": {Data: map[string][]byte{"A": []byte("secret a"), "raw": {0xff, 0}}}},
	}
)

func TestEnvironmentOfObjects(t *testing.T) {
	for _, tc := range []struct {
		name string
		from []v1.EnvFromSource
		env  []v1.EnvVar
		want []string
		err  string
	}{
		{
			name: "all keys, in order of the sources, data only",
			from: []v1.EnvFromSource{configMapRef("cm", false), secretRef("s", "P_", false)},
			want: []string{"A=a", "B=b", "odd.key-1=o", "P_A=secret a", "P_raw=\xff\x00"},
		},
		{
			name: "a later source wins, and env over both",
			from: []v1.EnvFromSource{configMapRef("cm", false), secretRef("s", "", false)},
			env:  []v1.EnvVar{{Name: "B", Value: "own $(A)"}},
			want: []string{"A=secret a", "B=own secret a", "odd.key-1=o", "raw=\xff\x00"},
		},
		{
			name: "single keys can be referred to by what follows",
			env:  []v1.EnvVar{configMapKey("X", "cm", "A", false), secretKey("Y", "s", "A", false), {Name: "Z", Value: "$(X),$(Y),$(NO)"}},
			want: []string{"X=a", "Y=secret a", "Z=a,secret a,$(NO)"},
		},
		{
			name: "what is optional and missing is not set",
			from: []v1.EnvFromSource{configMapRef("no", true), secretRef("no", "", true)},
			env:  []v1.EnvVar{configMapKey("A", "no", "k", true), configMapKey("B", "cm", "no", true), secretKey("C", "no", "k", true), secretKey("D", "s", "no", true), {Name: "E", Value: "$(A)"}},
			want: []string{"E=$(A)"},
		},
		{name: "missing config map", from: []v1.EnvFromSource{configMapRef("no", false)}, err: `configmap "no" not found`},
		{name: "missing secret", from: []v1.EnvFromSource{secretRef("no", "", false)}, err: `secret "no" not found`},
		{name: "missing config map of a key", env: []v1.EnvVar{configMapKey("A", "no", "k", false)}, err: `configmap "no" not found`},
		{name: "missing secret of a key", env: []v1.EnvVar{secretKey("A", "no", "k", false)}, err: `secret "no" not found`},
		{name: "missing key", env: []v1.EnvVar{configMapKey("A", "cm", "k", false)}, err: `couldn't find key k in ConfigMap default/cm: it has A, B, odd.key-1`},
		{name: "binary data is no key", env: []v1.EnvVar{configMapKey("A", "cm", "BIN", false)}, err: `couldn't find key BIN in ConfigMap default/cm: it has A, B, odd.key-1`},
		{name: "missing key of a secret", env: []v1.EnvVar{secretKey("A", "s", "k", false)}, err: `couldn't find key k in Secret default/s`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newPod(func(p *v1.Pod) { p.Spec.Containers[0].EnvFrom, p.Spec.Containers[0].Env = tc.from, tc.env })
			cfg, err := ContainerConfig(Container{Pod: p, Container: &p.Spec.Containers[0], Environment: testObject})
			messagestest.SawError(err)
			if tc.err != "" {
				if err == nil || err.Error() != tc.err {
					t.Fatalf("got %v, want %s", err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, e := range cfg.Envs {
				got = append(got, e.Key+"="+string(e.Value))
			}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestServiceVariables(t *testing.T) {
	services := []*v1.Service{
		service("other", "elsewhere", "10.0.0.9", v1.ServicePort{Port: 1}),
		service("ns", "headless", "None", v1.ServicePort{Port: 1}),
		service("ns", "external", "", v1.ServicePort{Port: 1}),
		service("ns", "my-db", "fd00::5", v1.ServicePort{Port: 5432, Protocol: v1.ProtocolTCP}, v1.ServicePort{Name: "side-car", Port: 53, Protocol: v1.ProtocolUDP}),
		apiServer,
	}
	api := map[string]string{
		"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443", "KUBERNETES_SERVICE_PORT_HTTPS": "443",
		"KUBERNETES_PORT": "tcp://10.0.0.1:443", "KUBERNETES_PORT_443_TCP": "tcp://10.0.0.1:443", "KUBERNETES_PORT_443_TCP_PROTO": "tcp",
		"KUBERNETES_PORT_443_TCP_PORT": "443", "KUBERNETES_PORT_443_TCP_ADDR": "10.0.0.1",
	}
	all := map[string]string{
		"MY_DB_SERVICE_HOST": "fd00::5", "MY_DB_SERVICE_PORT": "5432", "MY_DB_SERVICE_PORT_SIDE_CAR": "53",
		"MY_DB_PORT":          "tcp://[fd00::5]:5432",
		"MY_DB_PORT_5432_TCP": "tcp://[fd00::5]:5432", "MY_DB_PORT_5432_TCP_PROTO": "tcp", "MY_DB_PORT_5432_TCP_PORT": "5432", "MY_DB_PORT_5432_TCP_ADDR": "fd00::5",
		"MY_DB_PORT_53_UDP": "udp://[fd00::5]:53", "MY_DB_PORT_53_UDP_PROTO": "udp", "MY_DB_PORT_53_UDP_PORT": "53", "MY_DB_PORT_53_UDP_ADDR": "fd00::5",
	}
	for k, v := range api {
		all[k] = v
	}
	in := func(links *bool) *v1.Pod {
		return newPod(func(p *v1.Pod) { p.Namespace, p.Spec.EnableServiceLinks = "ns", links })
	}
	if d := cmp.Diff(all, serviceVariables(in(ptr.To(true)), services)); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(api, serviceVariables(in(ptr.To(false)), services)); d != "" {
		t.Errorf("without links: %s", d)
	}
	own := service("ns", "kubernetes", "10.9.9.9", v1.ServicePort{Port: 1})
	for _, order := range [][]*v1.Service{{own, apiServer}, {apiServer, own}} {
		if got := serviceVariables(in(nil), order)["KUBERNETES_SERVICE_HOST"]; got != "10.9.9.9" {
			t.Errorf("the namespace's own kubernetes: got %s", got)
		}
		if got := serviceVariables(in(ptr.To(false)), order)["KUBERNETES_SERVICE_HOST"]; got != "10.0.0.1" {
			t.Errorf("the same without links: got %s", got)
		}
	}
}

func TestServicesStandBehindTheContainersOwn(t *testing.T) {
	p := newPod(func(p *v1.Pod) {
		p.Spec.Containers[0].Env = []v1.EnvVar{
			{Name: "URL", Value: "https://$(KUBERNETES_SERVICE_HOST):$(KUBERNETES_SERVICE_PORT)"},
			{Name: "KUBERNETES_SERVICE_HOST", Value: "own"},
		}
		p.Spec.Containers[0].Args = []string{"$(KUBERNETES_SERVICE_HOST) $(KUBERNETES_PORT_443_TCP_PORT)"}
	})
	cfg, err := ContainerConfig(Container{Pod: p, Container: &p.Spec.Containers[0], Environment: Environment{Services: []*v1.Service{apiServer}}})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]string{}
	for _, e := range cfg.Envs {
		seen[e.Key] = string(e.Value)
	}
	if seen["URL"] != "https://10.0.0.1:443" || seen["KUBERNETES_SERVICE_HOST"] != "own" || cfg.Envs[0].Key != "URL" || len(seen) != 9 {
		t.Errorf("got %v", seen)
	}
	if d := cmp.Diff([]string{"own 443"}, cfg.Args); d != "" {
		t.Error(d)
	}
}

func TestResourceField(t *testing.T) {
	list := func(kv ...string) v1.ResourceList {
		l := v1.ResourceList{}
		for i := 0; i < len(kv); i += 2 {
			l[v1.ResourceName(kv[i])] = resource.MustParse(kv[i+1])
		}
		return l
	}
	full := v1.ResourceRequirements{
		Requests: list("cpu", "1250m", "memory", "100Mi", "ephemeral-storage", "1G"),
		Limits:   list("cpu", "1500m", "memory", "101Mi", "ephemeral-storage", "2G", "hugepages-2Mi", "4Mi"),
	}
	node := list("cpu", "3900m", "memory", "7Gi", "ephemeral-storage", "10Gi")
	for _, tc := range []struct {
		resource, divisor string
		of                v1.ResourceRequirements
		pod, node         v1.ResourceList
		want, err         string
	}{
		{resource: "limits.cpu", of: full, want: "2"},
		{resource: "limits.cpu", divisor: "1m", of: full, want: "1500"},
		{resource: "requests.cpu", divisor: "1", of: full, want: "2"},
		{resource: "requests.cpu", divisor: "1m", of: full, want: "1250"},
		{resource: "limits.memory", of: full, want: "105906176"},
		{resource: "limits.memory", divisor: "1Mi", of: full, want: "101"},
		{resource: "limits.memory", divisor: "1Gi", of: full, want: "1"},
		{resource: "requests.memory", divisor: "1Ki", of: full, want: "102400"},
		{resource: "requests.ephemeral-storage", divisor: "1M", of: full, want: "1000"},
		{resource: "limits.ephemeral-storage", of: full, want: "2000000000"},
		{resource: "limits.hugepages-2Mi", divisor: "1Mi", of: full, want: "4"},
		{resource: "limits.cpu", node: node, want: "4"},
		{resource: "limits.memory", divisor: "1Gi", node: node, want: "7"},
		{resource: "limits.ephemeral-storage", divisor: "1Gi", node: node, want: "10"},
		{resource: "limits.memory", divisor: "1Gi", node: node, pod: list("memory", "2Gi"), want: "2"},
		{resource: "limits.hugepages-2Mi", node: node, want: "0"},
		{resource: "requests.cpu", node: node, want: "0"},
		{resource: "limits.cpu", err: `container "c" sets no limit of cpu, and the node's allocatable amount is not known`},
		{resource: "limits.gpu", node: node, err: "unsupported container resource : limits.gpu"},
		{resource: "cpu", node: node, err: "unsupported container resource : cpu"},
	} {
		p := newPod(func(p *v1.Pod) {
			p.Spec.Containers[0].Resources = tc.of
			if tc.pod != nil {
				p.Spec.Resources = &v1.ResourceRequirements{Limits: tc.pod}
			}
		})
		ref := &v1.ResourceFieldSelector{Resource: tc.resource}
		if tc.divisor != "" {
			ref.Divisor = resource.MustParse(tc.divisor)
		}
		got, err := ResourceField(p, &p.Spec.Containers[0], ref, tc.node)
		if got != tc.want || (err == nil) != (tc.err == "") || (err != nil && err.Error() != tc.err) {
			t.Errorf("%s by %q: got %q, %v; want %q, %q", tc.resource, tc.divisor, got, err, tc.want, tc.err)
		}
	}
}

func TestResourceOfAnotherContainer(t *testing.T) {
	env := func(container string) *v1.Pod {
		return newPod(func(p *v1.Pod) {
			p.Spec.InitContainers = []v1.Container{{Name: "init", Resources: v1.ResourceRequirements{Limits: v1.ResourceList{"cpu": resource.MustParse("3")}}}}
			p.Spec.Containers[0].Env = []v1.EnvVar{{Name: "N", ValueFrom: &v1.EnvVarSource{ResourceFieldRef: &v1.ResourceFieldSelector{ContainerName: container, Resource: "limits.cpu"}}}}
		})
	}
	p := env("init")
	cfg, err := ContainerConfig(Container{Pod: p, Container: &p.Spec.Containers[0]})
	if err != nil || string(cfg.Envs[0].Value) != "3" {
		t.Errorf("got %v, %v", cfg.GetEnvs(), err)
	}
	p = env("no")
	if _, err := ContainerConfig(Container{Pod: p, Container: &p.Spec.Containers[0]}); err == nil || !strings.HasSuffix(err.Error(), "container no not found") {
		t.Errorf("got %v", err)
	}
}

func TestMetadataField(t *testing.T) {
	p := newPod(func(p *v1.Pod) {
		p.Labels = map[string]string{"b": "2", "a": "1"}
		p.Annotations = map[string]string{"note": "two\nlines \"quoted\""}
	})
	for path, want := range map[string]string{
		"metadata.name": "web", "metadata.namespace": "default", "metadata.uid": "u",
		"metadata.labels": "a=\"1\"\nb=\"2\"", "metadata.labels['a']": "1", "metadata.labels['no']": "",
		"metadata.annotations": `note="two\nlines \"quoted\""`, "metadata.annotations['note']": "two\nlines \"quoted\"",
	} {
		if got, ok := MetadataField(p, path); got != want || !ok {
			t.Errorf("%s: got %q, %v", path, got, ok)
		}
	}
	for _, path := range []string{"spec.nodeName", "status.podIP", "metadata.finalizers['x']", ""} {
		if got, ok := MetadataField(p, path); ok {
			t.Errorf("%s: got %q", path, got)
		}
	}
}
