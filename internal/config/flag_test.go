package config

import (
	"log/slog"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// samples has for each kind what a flag may be given and what its field is then.
var samples = map[string]struct {
	given []string
	want  any
}{
	textKind.name:       {[]string{"a", "b"}, "b"},
	boolKind.name:       {[]string{"true"}, true},
	int32Kind.name:      {[]string{"7"}, int64(7)},
	int64Kind.name:      {[]string{"8"}, int64(8)},
	durationKind.name:   {[]string{"90s"}, "1m30s"},
	quantityKind.name:   {[]string{"10Mi"}, "10Mi"},
	pathKind.name:       {[]string{"/a/../b"}, "/b"},
	listKind.name:       {[]string{"a,b", " c ,"}, []any{"a", "b", "c"}},
	mapKind.name:        {[]string{"a=b,c=d=e", "a=f"}, document{"a": "f", "c": "d=e"}},
	thresholdsKind.name: {[]string{"memory.available<1Gi,nodefs.available<5%"}, document{"memory.available": "1Gi", "nodefs.available": "5%"}},
	gatesKind.name:      {[]string{"A=true,B=false"}, document{"A": true, "B": false}},
	headersKind.name:    {[]string{"a:hello,b:again,c:x:y", "b:beautiful"}, document{"a": []any{"hello"}, "b": []any{"again", "beautiful"}, "c": []any{"x:y"}}},
	taintsKind.name: {[]string{"a=b:NoSchedule,c:NoExecute"}, []any{
		document{"key": "a", "value": "b", "effect": "NoSchedule"}, document{"key": "c", "effect": "NoExecute"},
	}},
	reservedMemoryKind.name: {[]string{"0:memory=1Gi,hugepages-2Mi=1Gi", "1:memory=2Gi;2:memory=3Gi"}, []any{
		document{"numaNode": int64(0), "limits": document{"memory": "1Gi", "hugepages-2Mi": "1Gi"}},
		document{"numaNode": int64(1), "limits": document{"memory": "2Gi"}},
		document{"numaNode": int64(2), "limits": document{"memory": "3Gi"}},
	}},
	vmoduleKind.name: {[]string{"a=1,b*=2"}, []any{
		document{"filePattern": "a", "verbosity": int64(1)}, document{"filePattern": "b*", "verbosity": int64(2)},
	}},
}

func TestEveryFlagSetsItsField(t *testing.T) {
	for _, f := range NewFlags().All() {
		if f.Field == "" {
			continue
		}
		t.Run(f.Name, func(t *testing.T) {
			sample, ok := samples[f.Type()]
			if !ok {
				t.Fatalf("no sample of kind %s", f.Type())
			}
			flags := NewFlags()
			for _, given := range sample.given {
				if err := flags.named[f.Name].Set(given); err != nil {
					t.Fatal(err)
				}
			}
			l := &layers{doc: document{}, origins: Origins{}}
			l.mergeFlags(flags)
			unknown, wrong := checkTypes(l.doc)
			if len(unknown)+len(wrong) > 0 {
				t.Fatalf("field %s: %v %v", f.Field, unknown, wrong)
			}
			value, _ := fieldAt(l.doc, f.Field)
			if diff := cmp.Diff(sample.want, value); diff != "" {
				t.Errorf("%s (-want +got):\n%s", f.Field, diff)
			}
			visitFields(l.doc, func(path string, _ any) {
				if got := l.origins.Of(path); got != (Origin{Kind: FromFlag, Name: "--" + f.Name}) {
					t.Errorf("%s comes from %v", path, got)
				}
			})
			if _, err := fromDocument(l.doc); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestFlagRefuses(t *testing.T) {
	for _, tt := range []struct{ flag, value, want string }{
		{"max-pods", "many", `"many" is no integer of 32 bits`},
		{"max-pods", "4294967296", "32 bits"},
		{"v", "-1", "number from 0"},
		{"anonymous-auth", "yes!", "neither true nor false"},
		{"sync-frequency", "10", "is no duration"},
		{"log-text-info-buffer-size", "big", "is no quantity"},
		{"node-labels", "a", `"a" has no "=" between a key and a value`},
		{"node-labels", "=a", "between a key and a value"},
		{"eviction-hard", "memory.available=1Gi", `has no "<"`},
		{"feature-gates", "A=on", "A: \"on\" is neither true nor false"},
		{"manifest-url-header", "a", "between a name and a value"},
		{"register-with-taints", "a=b", "key=value:effect"},
		{"reserved-memory", "memory=1Gi", "NUMA node"},
		{"reserved-memory", "0:memory", "between a key and a value"},
		{"reserved-memory", "0:memory=lots", "is no quantity"},
		{"vmodule", "a", "pattern=N"},
		{"version", "v1.2.3", "neither true nor false"},
	} {
		t.Run(tt.flag+"="+tt.value, func(t *testing.T) {
			flags := NewFlags()
			f := flags.named[tt.flag]
			err := f.Set(tt.value)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want one with %q", err, tt.want)
			}
			if f.IsSet() {
				t.Error("a refused value was kept")
			}
		})
	}
}

func TestFlagNamesAreUniqueAndDescribed(t *testing.T) {
	flags := NewFlags()
	if len(flags.named) != len(flags.flags) {
		t.Errorf("%d names of %d flags", len(flags.named), len(flags.flags))
	}
	groups := map[Group]bool{}
	for _, g := range Groups() {
		groups[g] = true
	}
	for _, f := range flags.All() {
		if f.Usage == "" || !groups[f.Group] || strings.HasSuffix(f.Usage, ".") {
			t.Errorf("--%s: usage %q, group %q", f.Name, f.Usage, f.Group)
		}
	}
}

func TestFlagsThatAreNoFields(t *testing.T) {
	k, err := Load(parsed(t,
		"--kubeconfig=/k", "--bootstrap-kubeconfig=/b", "--root-dir=/r", "--cert-dir=/c", "--hostname-override= Box ", "--node-ip=10.0.0.1,fd00::1",
		"--node-labels=a=b,example.com/c=", "--cloud-provider=external", "--runtime-cgroups=/system.slice", "--container-runtime-endpoint=embedded", "--selinux", "--lock-file=/l", "--exit-on-lock-contention",
		"--image-pull-progress-deadline=2m", "--image-credential-provider-config=/i", "--image-credential-provider-bin-dir=/bin", "--minimum-container-ttl-duration=1m",
		"--maximum-dead-containers-per-container=2", "--maximum-dead-containers=3", "--keep-objects=all", "--runtime-handler=podshim",
	))
	if err != nil {
		t.Fatal(err)
	}
	got := *k
	got.KubeletConfiguration, got.Origins, got.Flags, got.Warnings = KubeletConfiguration{}, nil, nil, nil
	want := Kubelet{
		Kubeconfig: "/k", BootstrapKubeconfig: "/b", RootDir: "/r", CertDir: "/c", HostnameOverride: "box",
		NodeIPs:    []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")},
		NodeLabels: map[string]string{"a": "b", "example.com/c": ""}, CloudProvider: "external", RuntimeCgroups: "/system.slice",
		SELinux: true, ImagePullProgressDeadline: 2 * time.Minute, LockFile: "/l", ExitOnLockContention: true, ImageCredentialProviderConfig: "/i", ImageCredentialProviderBinDir: "/bin",
		MinimumContainerTTL: time.Minute, MaxDeadContainersPerContainer: 2, MaxDeadContainers: 3, KeepObjects: KeepAll, RuntimeHandler: "podshim",
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := k.Origins.Of("--node-ip"); got != (Origin{Kind: FromFlag, Name: "--node-ip"}) {
		t.Errorf("--node-ip comes from %v", got)
	}

	k, err = Load(NewFlags())
	if err != nil {
		t.Fatal(err)
	}
	got = *k
	got.KubeletConfiguration, got.Origins, got.Flags, got.Warnings = KubeletConfiguration{}, nil, nil, nil
	want = Kubelet{RootDir: "/var/lib/kubelet", CertDir: "/var/lib/kubelet/pki", MaxDeadContainersPerContainer: 1, MaxDeadContainers: -1, ImagePullProgressDeadline: 5 * time.Minute, KeepObjects: KeepPods}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("nothing given (-want +got):\n%s", diff)
	}
}

func TestFeatureEnabled(t *testing.T) {
	for _, tt := range []struct {
		gates map[string]bool
		want  map[string]bool
	}{
		{nil, map[string]bool{"SidecarContainers": true, "PodLevelResources": true, "EventedPLEG": false, "Unheard": false}},
		{map[string]bool{"SidecarContainers": false, "Unheard": true}, map[string]bool{"SidecarContainers": true, "Unheard": false}},
		{map[string]bool{"PodLevelResources": false, "EventedPLEG": true}, map[string]bool{"PodLevelResources": false, "EventedPLEG": true}},
		{
			map[string]bool{"AllAlpha": true, "AllBeta": false, "EnvFiles": true, "MemoryQoS": false},
			map[string]bool{"EventedPLEG": true, "PodLevelResources": false, "EnvFiles": true, "MemoryQoS": false, "NodeSwap": true},
		},
	} {
		k := &Kubelet{KubeletConfiguration: KubeletConfiguration{FeatureGates: tt.gates}}
		for name, want := range tt.want {
			if got := k.FeatureEnabled(name); got != want {
				t.Errorf("%v: FeatureEnabled(%s) = %v", tt.gates, name, got)
			}
		}
	}
}

func TestNodeName(t *testing.T) {
	for _, tt := range []struct{ override, host, want, err string }{
		{"", "Box.Example", "box.example", ""},
		{"other", "Box", "other", ""},
		{"", "", "", "give the node one with --hostname-override"},
		{"", "a_b", "", `the host's name "a_b" cannot name a node`},
		{"a b", "box", "", `--hostname-override "a b" cannot name a node`},
	} {
		got, err := (&Kubelet{HostnameOverride: tt.override}).NodeName(tt.host)
		if got != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("NodeName(%q) with %q = %q, %v; want %q, %q", tt.host, tt.override, got, err, tt.want, tt.err)
		}
	}
}

func TestLogLevel(t *testing.T) {
	for v, want := range map[uint32]slog.Level{0: slog.LevelInfo, 3: slog.LevelInfo, 4: slog.LevelDebug, 6: -6, 1 << 31: -100} {
		if got := LogLevel(v); got != want {
			t.Errorf("verbosity %d: %v, want %v", v, got, want)
		}
	}
}

func TestEndpoints(t *testing.T) {
	k, err := Load(parsed(t, "--container-runtime-endpoint=embedded"))
	if err != nil {
		t.Fatal(err)
	}
	if k.RuntimeEndpoint() != "" || k.ImageEndpoint() != "" {
		t.Errorf("embedded: %q, %q", k.RuntimeEndpoint(), k.ImageEndpoint())
	}
	k, err = Load(parsed(t, "--image-service-endpoint=unix:///images.sock"))
	if err != nil {
		t.Fatal(err)
	}
	if k.RuntimeEndpoint() != "unix:///run/containerd/containerd.sock" || k.ImageEndpoint() != "unix:///images.sock" {
		t.Errorf("%q, %q", k.RuntimeEndpoint(), k.ImageEndpoint())
	}
}

func TestMergePatch(t *testing.T) {
	for name, tt := range map[string]struct{ target, patch, want document }{
		"add":            {document{}, document{"a": 1}, document{"a": 1}},
		"replace":        {document{"a": 1}, document{"a": 2}, document{"a": 2}},
		"null":           {document{"a": 1, "b": 2}, document{"a": nil}, document{"b": 2}},
		"null of none":   {document{}, document{"a": nil}, document{}},
		"objects":        {document{"a": document{"b": 1, "c": 2}}, document{"a": document{"c": nil, "d": 3}}, document{"a": document{"b": 1, "d": 3}}},
		"lists":          {document{"a": []any{1, 2}}, document{"a": []any{3}}, document{"a": []any{3}}},
		"null below new": {document{}, document{"a": document{"b": nil}}, document{"a": document{}}},
	} {
		mergePatch(tt.target, tt.patch)
		if !reflect.DeepEqual(tt.target, tt.want) {
			t.Errorf("%s: %v, want %v", name, tt.target, tt.want)
		}
	}
}

func TestKubeletVersion(t *testing.T) {
	for agent, want := range map[string]string{"v0.2.0": "v1.36.3+berth.v0.2.0", "a b+c": "v1.36.3+berth.a-b-c"} {
		if got := KubeletVersion(agent); got != want {
			t.Errorf("KubeletVersion(%q) = %q, want %q", agent, got, want)
		}
	}
}
