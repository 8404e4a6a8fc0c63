package crispec

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"sigs.k8s.io/yaml"

	"berth/internal/record/events/messagestest"
	"berth/internal/runtime/cri"
	"berth/internal/runtime/userns"
)

var update = flag.Bool("update", false, "write the requests that pods lead to into testdata, to be read before they are believed")

// The exact requests that pods lead to. testdata/plain.txtar has the whole of it for the plainest
// pod. Every other file is about one subject, and says at its top what to look at. It has pairs: a
// pod, as what it differs in from the plain one; and its requests, as what they differ in from the
// plain pod's (in YAML, as a JSON merge patch, RFC 7386: null is a field that is not there, lists
// are whole). A request is so fixed to the last field, and yet can be read.
func TestGolden(t *testing.T) {
	plain, _, err := translate(goldenCase{})
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	pods := 0
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			pods += checkGolden(t, file, plain)
		})
	}
	if pods < 200 {
		t.Errorf("there are %d pods, and should be 200", pods)
	}
}

// checkGolden checks, or updates, a file and returns how many pods it has.
func checkGolden(t *testing.T, file string, plain map[string]any) int {
	a, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	next := &txtar.Archive{Comment: a.Comment}
	pods := 0
	for i := range a.Files {
		f := a.Files[i]
		if strings.HasSuffix(f.Name, wanted) {
			continue
		}
		pods++
		var c goldenCase
		if err := yaml.UnmarshalStrict(f.Data, &c); err != nil {
			t.Errorf("%s: %v", f.Name, err)
			continue
		}
		got, before, err := translate(c)
		if err != nil {
			t.Errorf("%s: %v", f.Name, err)
			continue
		}
		if base := filepath.Base(file); base != "plain.txtar" {
			got = diff(plain, got)
		}
		text, err := yaml.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		if _, after, err := translate(c); err != nil || !reflect.DeepEqual(before, after) {
			t.Errorf("%s: the translation is not pure: it changed the pod, or comes out otherwise the second time", f.Name)
		}
		next.Files = append(next.Files, f, txtar.File{Name: f.Name + wanted, Data: text})
		if *update {
			continue
		}
		j := slices.IndexFunc(a.Files, func(w txtar.File) bool { return w.Name == f.Name+wanted })
		if j < 0 {
			t.Errorf("%s: there is nothing to compare with: run the test with -update, and read what it writes", f.Name)
		} else if d := cmp.Diff(strings.Split(string(a.Files[j].Data), "\n"), strings.Split(string(text), "\n")); d != "" {
			t.Errorf("%s: %s", f.Name, d)
		}
	}
	if *update {
		if err := os.WriteFile(file, txtar.Format(next), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return pods
}

const wanted = " leads to"

// goldenCase is what a pod and its node differ in from the plain ones. container is merged into the
// pod's first container, everything else over what it names.
type goldenCase struct {
	Node      goldenNode     `json:"node"`
	Metadata  map[string]any `json:"metadata"`
	Spec      map[string]any `json:"spec"`
	Container map[string]any `json:"container"`
}

// goldenNode is the world that a pod is translated for; each field has a default.
type goldenNode struct {
	ClusterDNS     []string       `json:"clusterDNS"`
	ClusterDomain  *string        `json:"clusterDomain"`
	Alone          bool           `json:"alone"` // in no cluster
	ResolvConf     *string        `json:"resolvConf"`
	PodIPs         []string       `json:"podIPs"`
	HostIPs        []string       `json:"hostIPs"`
	SeccompDefault bool           `json:"seccompDefault"`
	MaskedPaths    []string       `json:"maskedPaths"`
	Image          goldenImage    `json:"image"`
	Users          *userns.Range  `json:"users"`
	Target         string         `json:"target"`
	Volumes        map[string]any `json:"volumes"` // name to path, or path and ":ro"
	Attempt        uint32         `json:"attempt"`
	NoHosts        bool           `json:"noHosts"`
}

// goldenImage is who the image of every container runs as.
type goldenImage struct {
	UID  *int64 `json:"uid"`
	Name string `json:"name"`
}

const plainPod = `
metadata: {name: web, namespace: shop, uid: "0123"}
spec:
  dnsPolicy: ClusterFirst
  restartPolicy: Always
  enableServiceLinks: true
  nodeName: node-1
  serviceAccountName: default
  terminationGracePeriodSeconds: 30
  securityContext: {}
  containers:
  - {name: main, image: "web:1", terminationMessagePath: /dev/termination-log, terminationMessagePolicy: File, imagePullPolicy: IfNotPresent}
`

// pod returns the pod that the case is about.
func (c goldenCase) pod() (*v1.Pod, error) {
	var doc map[string]any
	if err := yaml.Unmarshal([]byte(plainPod), &doc); err != nil {
		return nil, err
	}
	doc = overlay(doc, map[string]any{"metadata": c.Metadata, "spec": c.Spec})
	containers := doc["spec"].(map[string]any)["containers"].([]any)
	containers[0] = overlay(containers[0].(map[string]any), c.Container)
	b, err := json.Marshal(doc)
	if err != nil {
		return nil, err
	}
	p := &v1.Pod{}
	return p, yaml.UnmarshalStrict(b, p)
}

// translate returns the requests of the pod as a tree, and the pod as it is after the translation.
func translate(c goldenCase) (map[string]any, *v1.Pod, error) {
	p, err := c.pod()
	if err != nil {
		return nil, nil, err
	}
	sandbox, warnings, err := SandboxConfig(c.sandbox(p))
	if err != nil {
		return map[string]any{"sandbox": nil, "containers": nil, "error": err.Error()}, p, nil
	}
	out := map[string]any{"sandbox": tree(sandbox)}
	for _, w := range warnings {
		messagestest.SawEvent(w.Reason, w.Message)
		said, _ := out["warnings"].([]any)
		out["warnings"] = append(said, w.Reason+": "+w.Message)
	}
	containers := map[string]any{}
	for _, container := range allContainers(p) {
		cfg, err := ContainerConfig(c.container(p, container))
		if err != nil {
			containers[container.Name] = map[string]any{"error": err.Error()}
			continue
		}
		containers[container.Name] = containerTree(cfg)
	}
	out["containers"] = containers
	return out, p, nil
}

func allContainers(p *v1.Pod) []*v1.Container {
	var out []*v1.Container
	for i := range p.Spec.InitContainers {
		out = append(out, &p.Spec.InitContainers[i])
	}
	for i := range p.Spec.Containers {
		out = append(out, &p.Spec.Containers[i])
	}
	for i := range p.Spec.EphemeralContainers {
		out = append(out, (*v1.Container)(&p.Spec.EphemeralContainers[i].EphemeralContainerCommon))
	}
	return out
}

func (c goldenCase) sandbox(p *v1.Pod) Sandbox {
	n := c.Node
	domain, resolvConf := "cluster.local", "nameserver 192.0.2.53\nsearch corp.example\noptions timeout:2\n"
	if n.ClusterDomain != nil {
		domain = *n.ClusterDomain
	}
	if n.ResolvConf != nil {
		resolvConf = *n.ResolvConf
	}
	servers := n.ClusterDNS
	if servers == nil {
		servers = []string{"10.96.0.10"}
	}
	host := ParseResolvConf([]byte(resolvConf))
	if resolvConf == "" {
		host = LoopbackResolver(n.HostIPs)
	}
	return Sandbox{
		Pod: p, Attempt: n.Attempt, LogDirectory: "/logs/shop_web_0123", CgroupParent: "/kubepods/pod0123",
		DNS: DNS{Servers: servers, Domain: domain, Host: host, InCluster: !n.Alone}, Users: n.Users,
	}
}

func (c goldenCase) container(p *v1.Pod, container *v1.Container) Container {
	n := c.Node
	in := Container{
		Pod: p, Container: container, Attempt: n.Attempt, Image: container.Image, ImageRef: "sha256:abc",
		PodIPs: n.PodIPs, HostIPs: n.HostIPs, Volumes: map[string]Volume{}, Files: HostFiles{Hosts: "/pods/0123/etc-hosts", TerminationLog: "/pods/0123/term"},
		User: ImageUser{UID: n.Image.UID, Name: n.Image.Name}, Users: n.Users, Node: NodeSettings{
			SeccompRoot: "/var/lib/berth/seccomp", SeccompDefault: runtimeapi.SecurityProfile_Unconfined,
			MaskedPaths: n.MaskedPaths, Resources: ResourceSettings{NodeMemory: 8 << 30},
		},
	}
	if in.PodIPs == nil {
		in.PodIPs = []string{"10.244.0.7"}
	}
	if in.HostIPs == nil {
		in.HostIPs = []string{"192.0.2.1"}
	}
	if n.SeccompDefault {
		in.Node.SeccompDefault = runtimeapi.SecurityProfile_RuntimeDefault
	}
	if n.NoHosts {
		in.Files.Hosts = ""
	}
	if slices.ContainsFunc(p.Spec.EphemeralContainers, func(e v1.EphemeralContainer) bool { return e.Name == container.Name }) {
		in.Target = "id-of-target"
		if n.Target != "" {
			in.Target = ""
		}
	}
	for name, path := range n.Volumes {
		host, ro := strings.CutSuffix(fmt.Sprint(path), ":ro")
		in.Volumes[name] = Volume{HostPath: host, ReadOnly: ro}
	}
	return in
}

// tree returns a message as its JSON has it.
func tree(m proto.Message) map[string]any {
	b, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(m)
	if err != nil {
		panic(err)
	}
	return withoutEmpty(decode(b)).(map[string]any)
}

// withoutEmpty leaves out empty texts and lists, and what is not so. Numbers and names of choices
// stay: the user 0 is one, and POD says more than nothing.
func withoutEmpty(v any) any {
	m, ok := v.(map[string]any)
	if !ok {
		return v
	}
	for k, v := range m {
		list, isList := v.([]any)
		if v == "" || v == false || isList && len(list) == 0 {
			delete(m, k)
			continue
		}
		if isList {
			for i := range list {
				list[i] = withoutEmpty(list[i])
			}
		}
		m[k] = withoutEmpty(v)
	}
	return m
}

// decode keeps numbers as they are written.
func decode(b []byte) map[string]any {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var out map[string]any
	if err := d.Decode(&out); err != nil {
		panic(err)
	}
	return out
}

// containerTree is tree with values of variables as texts, and without the hash of the container,
// which says nothing more than the pod does.
func containerTree(cfg *runtimeapi.ContainerConfig) map[string]any {
	cfg = proto.Clone(cfg).(*runtimeapi.ContainerConfig)
	var envs []any
	for _, e := range cfg.Envs {
		envs = append(envs, e.Key+"="+string(e.Value))
	}
	cfg.Envs = nil
	out := tree(cfg)
	if envs != nil {
		out["envs"] = envs
	}
	if a, ok := out["annotations"].(map[string]any); ok {
		delete(a, cri.HashAnnotation)
	}
	return out
}

// overlay returns the tree with another over it: maps are merged, everything else is replaced, null
// removes.
func overlay(base, over map[string]any) map[string]any {
	out := maps.Clone(base)
	for k, v := range over {
		below, isMap := v.(map[string]any)
		have, _ := out[k].(map[string]any)
		switch {
		case isMap && have != nil:
			out[k] = overlay(have, below)
		case v == nil:
			delete(out, k)
		default:
			out[k] = v
		}
	}
	return out
}

// diff returns what overlay makes the second tree of the first with. Each container of the second
// is compared with the first one's "main".
func diff(base, got map[string]any) map[string]any {
	out := map[string]any{}
	for k := range maps.Keys(base) {
		if _, ok := got[k]; !ok {
			out[k] = nil
		}
	}
	for k, v := range got {
		have, ok := base[k]
		if !ok && k != "error" {
			if main, isContainer := base["main"].(map[string]any); isContainer {
				have, ok = main, true
			}
		}
		if ok && reflect.DeepEqual(have, v) {
			continue
		}
		below, isMap := v.(map[string]any)
		if b, was := have.(map[string]any); isMap && was && below["error"] == nil {
			out[k] = diff(b, below)
			continue
		}
		out[k] = v
	}
	return out
}
