package cni

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
)

const (
	range4 = "10.88.0.0/24"
	range6 = "fd00:88::/64"
)

// Each request of the specification has the answer that it asks for.
func TestRequests(t *testing.T) {
	bothWays(t, ours(range4), testRequests)
}

func testRequests(t *testing.T, h *host) {
	p := h.pod("pod", nil)
	config := func(change ...any) map[string]any {
		c := h.plugins(h, nil)[0]
		for i := 0; i < len(change); i += 2 {
			if change[i+1] == nil {
				delete(c, change[i].(string))
			} else {
				c[change[i].(string)] = change[i+1]
			}
		}
		return c
	}
	ports := func(m map[string]any) map[string]any { return map[string]any{"portMappings": []any{m}} }
	limit := func(m map[string]any) map[string]any { return map[string]any{"bandwidth": m} }
	set := func(m map[string]any) any { return []any{[]any{m}} }
	env := func(command string, more ...string) []string {
		return append([]string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=pod", "CNI_NETNS=" + p.file, "CNI_IFNAME=eth0"}, more...)
	}
	for name, c := range map[string]struct {
		env    []string
		config any
		code   uint   // 0 is no error
		want   string // in the message, or in what is printed
	}{
		"version":               {env("VERSION"), `{"cniVersion":"1.1.0"}`, 0, `"supportedVersions":["0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]`},
		"unknown command":       {env("MOVE"), config(), 4, "unknown CNI_COMMAND: MOVE"},
		"no container":          {env("ADD", "CNI_CONTAINERID="), config(), 4, "CNI_CONTAINERID"},
		"no interface":          {env("ADD", "CNI_IFNAME="), config(), 4, "CNI_IFNAME"},
		"no namespace":          {env("ADD", "CNI_NETNS="), config(), 4, "CNI_NETNS"},
		"namespace that is not": {env("ADD", "CNI_NETNS="+h.dir+"/none"), config(), 8, "network namespace"},
		"an interface's name":   {env("ADD", "CNI_IFNAME=a-name-that-is-too-long"), config(), 4, "interface name"},
		"version of the future": {env("ADD"), config("cniVersion", "9.9.9"), 1, "incompatible CNI versions"},
		"not JSON":              {env("ADD"), `{"cniVersion`, 6, "unexpected end"},
		"no name":               {env("ADD"), config("name", nil), 7, "missing network name"},
		"no bridge":             {env("ADD"), config("bridge", nil), 7, `bridge: "" is no name`},
		"a long bridge":         {env("ADD"), config("bridge", "a-name-that-is-too-long"), 7, "is no name of an interface"},
		"another interface":     {env("ADD"), config("bridge", "lo"), 7, "bridge: lo is an interface of type"},
		"mtu":                   {env("ADD"), config("mtu", -1), 7, "mtu: -1 is negative"},
		"ipam":                  {env("ADD"), config("ipam", map[string]any{"type": "host-local"}), 7, "ipam: this plugin gives addresses itself"},
		"no ranges":             {env("ADD"), config("ranges", nil), 7, "ranges: none is given"},
		"an empty set":          {env("ADD"), config("ranges", []any{[]any{}}), 7, "ranges[0]: the set is empty"},
		"no subnet":             {env("ADD"), config("ranges", set(map[string]any{})), 7, "ranges[0]: subnet:"},
		"a host":                {env("ADD"), config("ranges", set(map[string]any{"subnet": "10.0.0.7/24"})), 7, "10.0.0.0/24 is meant"},
		"a small subnet":        {env("ADD"), config("ranges", set(map[string]any{"subnet": "10.0.0.0/31"})), 7, "no address for a pod"},
		"gateway elsewhere":     {env("ADD"), config("ranges", set(map[string]any{"subnet": "10.0.0.0/24", "gateway": "10.1.0.1"})), 7, "gateway: 10.1.0.1 is not in subnet 10.0.0.0/24"},
		"end before start":      {env("ADD"), config("ranges", set(map[string]any{"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.9", "rangeEnd": "10.0.0.8"})), 7, "rangeEnd: 10.0.0.8 is before rangeStart 10.0.0.9"},
		"two families":          {env("ADD"), config("ranges", []any{[]any{map[string]any{"subnet": range4}, map[string]any{"subnet": range6}}}), 7, "are of two families"},
		"chained":               {env("ADD"), config("prevResult", map[string]any{"cniVersion": "1.1.0", "ips": []any{}}), 7, "must be the first"},
		"port 0":                {env("ADD"), config("runtimeConfig", ports(map[string]any{"hostPort": 0, "containerPort": 80, "protocol": "tcp"})), 7, "hostPort 0 is not from 1 to 65535"},
		"a protocol":            {env("ADD"), config("runtimeConfig", ports(map[string]any{"hostPort": 80, "containerPort": 80, "protocol": "icmp"})), 7, `protocol "icmp"`},
		"a host address":        {env("ADD"), config("runtimeConfig", ports(map[string]any{"hostPort": 80, "containerPort": 80, "protocol": "tcp", "hostIP": "here"})), 7, `hostIP "here"`},
		"a rate without burst":  {env("ADD"), config("runtimeConfig", limit(map[string]any{"ingressRate": 8000})), 7, "ingressRate is 8000 and ingressBurst 0"},
		"a burst beyond all":    {env("ADD"), config("runtimeConfig", limit(map[string]any{"egressRate": 8000, "egressBurst": uint64(1) << 40})), 7, "more than 4 GB"},
		"CHECK without result":  {env("CHECK"), config(), 7, "prevResult"},
		"CHECK of long ago":     {env("CHECK"), config("cniVersion", "0.3.1"), 1, "does not allow CHECK"},
		"GC of long ago":        {env("GC"), config("cniVersion", "1.0.0"), 1, "does not allow GC"},
		"STATUS of long ago":    {env("STATUS"), config("cniVersion", "1.0.0"), 1, "does not allow STATUS"},
		"STATUS":                {env("STATUS"), config(), 0, ""},
		"DEL of what was never": {env("DEL"), config(), 0, ""},
		"DEL without namespace": {env("DEL", "CNI_NETNS="), config(), 0, ""},
		"DEL, namespace gone":   {env("DEL", "CNI_NETNS="+h.dir+"/none"), config(), 0, ""},
		"GC of nothing":         {env("GC"), config("cni.dev/valid-attachments", []any{}), 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			out, told := h.call("berth-cni", c.config, c.env...)
			if told == nil {
				told = &types.Error{}
			}
			if told.Code != c.code {
				t.Errorf("code %d, want %d: %s%s", told.Code, c.code, told, out)
			}
			if text := told.Msg + told.Details + string(out); !strings.Contains(text, c.want) {
				t.Errorf("%s\nlacks %q", text, c.want)
			}
			if left := h.traces(); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

// The result has the form of the version that was asked for.
func TestResultOfEachVersion(t *testing.T) {
	bothWays(t, ours(range4), testResultOfEachVersion)
}

func testResultOfEachVersion(t *testing.T, h *host) {
	for _, v := range []string{"0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		p := h.pod("v"+v, nil)
		config := h.plugins(h, nil)[0]
		config["cniVersion"] = v
		env := []string{"CNI_CONTAINERID=" + p.id, "CNI_NETNS=" + p.file, "CNI_IFNAME=eth0"}
		out, told := h.call("berth-cni", config, append(env, "CNI_COMMAND=ADD")...)
		if told != nil {
			t.Fatalf("%s: %v", v, told)
		}
		var result struct {
			CNIVersion string `json:"cniVersion"`
			IPs        []struct {
				Version string `json:"version"`
				Address string `json:"address"`
			} `json:"ips"`
		}
		if err := json.Unmarshal(out, &result); err != nil {
			t.Fatal(err)
		}
		if result.CNIVersion != v || len(result.IPs) != 1 || (result.IPs[0].Version == "4") != (v < "1") {
			t.Errorf("%s: %s", v, out)
		}
		config["prevResult"] = json.RawMessage(out)
		if _, told := h.call("berth-cni", config, append(env, "CNI_COMMAND=DEL")...); told != nil {
			t.Errorf("%s: DEL: %v", v, told)
		}
	}
	if left := h.traces(); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

var all = map[string]any{
	"portMappings": []any{
		map[string]any{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
		map[string]any{"hostPort": 8053, "containerPort": 53, "protocol": "udp", "hostIP": "127.0.0.1"},
	},
	"bandwidth": map[string]any{"ingressRate": 80_000_000, "ingressBurst": 80_000_000, "egressRate": 80_000_000, "egressBurst": 80_000_000},
}

// A plugin may be killed at each of its steps, in ADD and in DEL: a DEL then leaves nothing.
func TestKilledAtEachStep(t *testing.T) {
	for _, killed := range []string{"ADD", "DEL"} {
		for n := 1; ; n++ {
			h := newHost(t, ours(range4, range6))
			p := h.pod("pod", all)
			if killed == "DEL" {
				p.must("ADD")
			}
			told := p.run(killed, fmt.Sprintf("%s=%d", killAt, n))
			if told != nil && !strings.Contains(told.Msg, "signal: killed") {
				t.Fatal(told)
			}
			before := h.traces()
			p.must("DEL")
			if left := h.traces(); len(left) > 0 {
				t.Errorf("%s killed at step %d, when there was %v: left behind: %v", killed, n, before, left)
			}
			p.result = nil
			p.must("ADD")
			if told == nil { // no such step
				if n < 4 {
					t.Errorf("%s has %d steps", killed, n-1)
				}
				break
			}
		}
	}
}

// Pods that start at the same time have addresses of their own, also while the bridge and the table
// are made.
func TestManyAtOnce(t *testing.T) {
	bothWays(t, ours("10.88.0.0/16"), testManyAtOnce)
}

func testManyAtOnce(t *testing.T, h *host) {
	const pods = 200
	var all []*testPod
	for i := range pods {
		all = append(all, h.pod(fmt.Sprint("pod", i), map[string]any{"portMappings": []any{
			map[string]any{"hostPort": 10000 + i, "containerPort": 80, "protocol": "tcp"},
		}}))
	}
	atOnce := func(command string) {
		var group sync.WaitGroup
		slots := make(chan struct{}, 20)
		for _, p := range all {
			group.Go(func() {
				slots <- struct{}{}
				defer func() { <-slots }()
				if told := p.run(command); told != nil {
					t.Errorf("%s of %s: %v", command, p.id, told)
				}
			})
		}
		group.Wait()
	}
	atOnce("ADD")
	owners := map[string]string{}
	for _, p := range all {
		if p.result == nil {
			continue
		}
		a := p.ip(false).String()
		if owners[a] != "" {
			t.Errorf("%s and %s have both %s", owners[a], p.id, a)
		}
		owners[a] = p.id
	}
	if got := len(h.traces()); got != 3*pods {
		t.Errorf("%d traces of %d pods, want a lease, an interface and a port of each", got, pods)
	}
	atOnce("DEL")
	if left := h.traces(); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// Addresses are given in turn, and when none is free, STATUS says so too.
func TestAddressesRunOut(t *testing.T) {
	bothWays(t, ours("10.88.0.0/29"), testAddressesRunOut)
}

func testAddressesRunOut(t *testing.T, h *host) {
	var got []string
	add := func(id string) (*testPod, *types.Error) {
		p := h.pod(id, nil)
		told := p.run("ADD")
		if told == nil {
			got = append(got, p.ip(false).String())
		}
		return p, told
	}
	first, _ := add("a")
	for _, id := range []string{"b", "c", "d", "e"} {
		add(id)
	}
	_, full := add("f")
	if full == nil || full.Code != types.ErrTryAgainLater || !strings.Contains(full.Msg, "no address of 10.88.0.0/29 is free") {
		t.Errorf("ADD without an address: %v", full)
	}
	if _, told := h.call("berth-cni", h.plugins(h, nil)[0], "CNI_COMMAND=STATUS"); told == nil || told.Code != errNotAvailable {
		t.Errorf("STATUS without an address: %v", told)
	}
	first.must("DEL")
	add("g")
	want := []string{"10.88.0.2", "10.88.0.3", "10.88.0.4", "10.88.0.5", "10.88.0.6", "10.88.0.2"}
	if !slices.Equal(got, want) {
		t.Errorf("addresses %v, want %v", got, want)
	}
}

// A host port is one pod's at a time. A pod that is gone without a DEL does not keep it.
func TestHostPortInUse(t *testing.T) {
	bothWays(t, ours(range4), testHostPortInUse)
}

func testHostPortInUse(t *testing.T, h *host) {
	a, b := h.pod("a", all), h.pod("b", all)
	a.must("ADD")
	told := b.run("ADD")
	if told == nil || told.Code != types.ErrTryAgainLater || !strings.Contains(told.Msg, "host port 8080/tcp is in use by a") {
		t.Errorf("ADD with a port that is in use: %v", told)
	}
	for _, left := range h.traces() {
		if strings.Contains(left, "b eth0") || strings.Contains(left, "10.88.0.3") {
			t.Errorf("left behind: %s", left)
		}
	}
	if err := os.Remove(h.dir + "/leases/net/" + a.ip(false).String()); err != nil {
		t.Fatal(err)
	}
	b.must("ADD")
	b.must("CHECK")
	a.must("DEL")
	b.must("CHECK") // it keeps what it took over
}

// An ADD brings back what somebody has removed from nftables, and another range than before leaves
// pods masqueraded that have addresses of the old one.
func TestTableIsMended(t *testing.T) {
	h := newHost(t, ours(range4))
	h.pod("a", nil).must("ADD")
	nft := func(args ...string) string {
		var out []byte
		h.do(func() {
			var err error
			if out, err = exec.Command("nft", args...).CombinedOutput(); err != nil {
				t.Errorf("nft %v: %v: %s", args, err, out)
			}
		})
		return string(out)
	}
	before := nft("list", "table", "inet", "cni-net")
	nft("flush", "ruleset")
	b := h.pod("b", nil)
	b.must("ADD")
	if after := nft("list", "table", "inet", "cni-net"); after != before || !strings.Contains(after, "masquerade") {
		t.Errorf("the table is\n%s\nand was\n%s", after, before)
	}
	h.plugins = func(h *host, r map[string]any) []map[string]any {
		config := ours("10.99.0.0/24")(h, r)
		config[0]["bridge"] = "cni1"
		return config
	}
	h.pod("c", nil).must("ADD")
	want := "{ 10.88.0.2/31, 10.99.0.0/24 }"
	if got := nft("list", "set", "inet", "cni-net", "ranges4"); !strings.Contains(strings.Join(strings.Fields(got), " "), want) {
		t.Errorf("ranges are\n%s, want %s", got, want)
	}
	b.must("DEL")
}

// Many pods have addresses of the range before, side by side and beside the new range.
func TestManyAddressesOfAnotherRange(t *testing.T) {
	h := newHost(t, ours("10.99.0.0/24"))
	leases := h.dir + "/leases/net"
	if err := os.MkdirAll(leases, 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range 40 {
		for _, address := range []string{fmt.Sprintf("10.88.0.%d", 2+i+i/10), fmt.Sprintf("10.98.255.%d", 255-i)} {
			if err := os.WriteFile(filepath.Join(leases, address), fmt.Appendf(nil, "pod%d\r\neth0", i), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	h.pod("a", nil).must("ADD")
	var out []byte
	h.do(func() {
		var err error
		if out, err = exec.Command("nft", "list", "set", "inet", "cni-net", "ranges4").CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	want := "{ 10.88.0.2-10.88.0.11, 10.88.0.13-10.88.0.22, 10.88.0.24-10.88.0.33, 10.88.0.35-10.88.0.44, 10.98.255.216-10.99.0.255 }"
	if got := strings.Join(strings.Fields(string(out)), " "); !strings.Contains(got, want) {
		t.Errorf("ranges are\n%s, want %s", got, want)
	}
	h.pod("b", nil).must("ADD")
}

// An ADD that was killed before it had written whose an address is has not used it up.
func TestEmptyLease(t *testing.T) {
	h := newHost(t, ours("10.88.0.0/30"))
	if err := os.MkdirAll(h.dir+"/leases/net", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(h.dir, "leases/net/10.88.0.2"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p := h.pod("a", nil)
	p.must("DEL")
	p.must("ADD")
}

// A folder in the place of a file of the leases keeps no pod from its network: neither from its
// end, nor a new one from its start. An address whose lease is a folder may be a pod's.
func TestFolderInPlaceOfLeases(t *testing.T) {
	bothWays(t, ours(range4), testFolderInPlaceOfLeases)
}

func testFolderInPlaceOfLeases(t *testing.T, h *host) {
	first, second := h.pod("first", all), h.pod("second", nil)
	first.must("ADD")
	second.must("ADD")
	replace := func(name string) {
		t.Helper()
		file := filepath.Join(h.dir, "leases/net", name)
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Join(file, "more"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	replace("lock")
	replace(lastPrefix + "0")
	replace(second.ip(false).String())
	first.must("DEL")
	if _, told := h.call("berth-cni", h.plugins(h, nil)[0], "CNI_COMMAND=STATUS"); told != nil {
		t.Errorf("STATUS: %v", told)
	}
	for i := range 3 {
		p := h.pod(fmt.Sprint("next", i), nil)
		p.must("ADD")
		if p.ip(false).Equal(second.ip(false)) {
			t.Errorf("%s is given to another pod", p.ip(false))
		}
		p.must("DEL")
	}
	second.must("DEL")
	if left, want := h.traces(), []string{"lease " + second.ip(false).String()}; !slices.Equal(left, want) {
		t.Errorf("left behind: %v, want %v", left, want)
	}
	for _, name := range []string{"lock", lastPrefix + "0"} {
		if fi, err := os.Lstat(filepath.Join(h.dir, "leases/net", name)); err != nil || !fi.Mode().IsRegular() {
			t.Errorf("%s is no file again: %v, %v", name, fi, err)
		}
	}
}

// Calls that find the folder at the same time lock the same file.
func TestFolderInPlaceOfLockAtOnce(t *testing.T) {
	c := &config{DataDir: t.TempDir()}
	c.Name = "net"
	for range 200 {
		lock := filepath.Join(c.DataDir, c.Name, "lock")
		if err := os.RemoveAll(lock); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Join(lock, "more"), 0o755); err != nil {
			t.Fatal(err)
		}
		var inside atomic.Int32
		var group sync.WaitGroup
		for range 4 {
			group.Go(func() {
				l, err := openLeases(c)
				if err != nil {
					t.Error(err)
					return
				}
				if n := inside.Add(1); n != 1 {
					t.Errorf("%d have the lock", n)
				}
				runtime.Gosched()
				inside.Add(-1)
				l.close()
			})
		}
		group.Wait()
	}
}
