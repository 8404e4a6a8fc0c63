package dra

import (
	"encoding/json"
	"hash/crc32"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	healthapi "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"

	"berth/internal/record/events/messagestest"
)

func envelopeOf(t *testing.T, data string) string {
	t.Helper()
	b, err := json.Marshal(envelope{data, crc32.ChecksumIEEE([]byte(data))})
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestChooseEndpoint(t *testing.T) {
	for name, test := range map[string]struct {
		all  []*endpoint
		want string
	}{
		"none":             {nil, ""},
		"newest":           {[]*endpoint{{address: "a"}, {address: "b"}}, "b"},
		"connected":        {[]*endpoint{{address: "a", connected: true}, {address: "b"}}, "a"},
		"newest connected": {[]*endpoint{{address: "a", connected: true}, {address: "b", connected: true}, {address: "c"}}, "b"},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			if e := chooseEndpoint(test.all); e != nil {
				got = e.address
			}
			if got != test.want {
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
}

func TestValidateDriver(t *testing.T) {
	for name, test := range map[string]struct {
		driver   string
		versions []string
		want     string // in the error
	}{
		"both":      {"d.example.com", []string{"v1.DRAPlugin", "v1beta1.DRAPlugin"}, ""},
		"old":       {"d", []string{"v1alpha4.Node", "v1beta1.DRAPlugin"}, ""},
		"unknown":   {"d", []string{"1.0.0"}, `DRA driver d: none of the versions ["1.0.0"] is supported; v1.DRAPlugin and v1beta1.DRAPlugin are`},
		"nothing":   {"d", nil, `none of the versions [] is supported`},
		"no name":   {"", []string{"v1.DRAPlugin"}, `DRA driver name "": `},
		"a path":    {"../d", []string{"v1.DRAPlugin"}, `DRA driver name "../d": `},
		"too long":  {strings.Repeat("d", 300), []string{"v1.DRAPlugin"}, `must be no more than 253`},
		"a service": {"d", []string{"v1alpha1.DRAResourceHealth"}, `none of the versions`},
	} {
		t.Run(name, func(t *testing.T) {
			err := validateDriver(test.driver, test.versions)
			messagestest.SawError(err)
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("error = %v, want %q", err, test.want)
			}
		})
	}
}

func TestJudge(t *testing.T) {
	asked := []reference{{key: types.NamespacedName{Name: "a"}, uid: "ua"}, {key: types.NamespacedName{Name: "b"}, uid: "ub"}}
	ok := &drav1.NodeUnprepareResourceResponse{}
	for name, test := range map[string]struct {
		answers map[string]*drav1.NodeUnprepareResourceResponse
		taken   string
		want    string
	}{
		"all":          {map[string]*drav1.NodeUnprepareResourceResponse{"ua": ok, "ub": ok}, "ab", ""},
		"nil is one":   {map[string]*drav1.NodeUnprepareResourceResponse{"ua": nil, "ub": ok}, "ab", ""},
		"none":         {nil, "", "M skipped 2 ResourceClaims"},
		"one":          {map[string]*drav1.NodeUnprepareResourceResponse{"ub": ok}, "b", "M skipped 1 ResourceClaims"},
		"error":        {map[string]*drav1.NodeUnprepareResourceResponse{"ua": {Error: "no"}, "ub": ok}, "b", "M failed for ResourceClaim a: no"},
		"error, skips": {map[string]*drav1.NodeUnprepareResourceResponse{"ua": {Error: "no"}}, "", "M failed for ResourceClaim a: no\nM skipped 1 ResourceClaims"},
		"stray":        {map[string]*drav1.NodeUnprepareResourceResponse{"ua": ok, "ub": ok, "uc": ok}, "", `M answered for the unknown claim UID "uc"`},
		"long":         {map[string]*drav1.NodeUnprepareResourceResponse{"ua": ok, "ub": {Error: strings.Repeat("é", 10000)}}, "a", "M failed for ResourceClaim b: " + strings.Repeat("é", 398) + "..."},
	} {
		t.Run(name, func(t *testing.T) {
			taken, text := "", ""
			err := checkResponse("M", asked, test.answers, func(r reference, _ *drav1.NodeUnprepareResourceResponse) { taken += r.key.Name })
			if err != nil {
				text = err.Error()
			}
			if taken != test.taken || text != test.want {
				t.Errorf("taken %q, error %q, want %q and %q", taken, text, test.taken, test.want)
			}
		})
	}
}

func TestGets(t *testing.T) {
	for name, test := range map[string]struct {
		request string
		device  []string
		want    bool
	}{
		"all requests":      {"", []string{"r"}, true},
		"device of all":     {"r", nil, true},
		"its own":           {"r", []string{"q", "r"}, true},
		"another's":         {"r", []string{"q"}, false},
		"subrequest":        {"r", []string{"r/a"}, true},
		"begins like it":    {"r", []string{"rr/a"}, false},
		"subrequest's name": {"a", []string{"r/a"}, false},
		"exactly that":      {"r/a", []string{"r/a"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := (request{name: test.request}).gets(Device{Requests: test.device}); got != test.want {
				t.Errorf("%v, want %v", got, test.want)
			}
		})
	}
}

func TestSliceSelector(t *testing.T) {
	for want, got := range map[string]string{
		"spec.nodeName=n,spec.driver=d":                   sliceSelector("n", "d", []string{"x"}).Fields.String(),
		"spec.nodeName=n":                                 sliceSelector("n", allDrivers, nil).Fields.String(),
		"spec.nodeName=n,spec.driver!=x,spec.driver!=y.z": sliceSelector("n", allDrivers, []string{"x", "y.z"}).Fields.String(),
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// told is a list of one device of the pool p.
func told(name string, status healthapi.HealthStatus, timeout int64, message string) []*healthapi.DeviceHealth {
	return []*healthapi.DeviceHealth{{
		Device: &healthapi.DeviceIdentifier{PoolName: "p", DeviceName: name}, Health: status, Message: message,
		HealthCheckTimeoutSeconds: timeout, LastUpdatedTime: 12345,
	}}
}

func TestHealths(t *testing.T) {
	start := time.Unix(1000, 0)
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	older, newer := &endpoint{driver: "d", number: 1}, &endpoint{driver: "d", number: 2}
	h := &healths{drivers: map[string]*driverHealths{}}
	check := func(what string, changed map[deviceID]bool, want ...string) {
		t.Helper()
		wanted := map[deviceID]bool{}
		for _, name := range want {
			wanted[deviceID{"p", name}] = true
		}
		if diff := cmp.Diff(wanted, changed, cmp.AllowUnexported(deviceID{}), cmp.Transformer("nil", func(m map[deviceID]bool) map[deviceID]bool {
			if len(m) == 0 {
				return nil
			}
			return m
		})); diff != "" {
			t.Errorf("%s: changed (-want +got):\n%s", what, diff)
		}
	}
	is := func(name string, now time.Time, want v1.ResourceHealthStatus, message string) {
		t.Helper()
		if got, m := h.of("d", deviceID{"p", name}, now); got != want || m != message {
			t.Errorf("%s at %v: %s %q, want %s %q", name, now.Sub(start), got, m, want, message)
		}
	}
	healthy, unhealthy := healthapi.HealthStatus_HEALTHY, healthapi.HealthStatus_UNHEALTHY
	check("first", h.update(older, told("a", healthy, 0, ""), at(0)), "a")
	check("again", h.update(older, told("a", healthy, 0, ""), at(1)))
	check("another", h.update(older, told("b", unhealthy, 5, "hot"), at(2)), "b")
	is("a", at(30), v1.ResourceHealthStatusHealthy, "") // told of no more, for its time
	is("a", at(31), v1.ResourceHealthStatusUnknown, "")
	is("b", at(6), v1.ResourceHealthStatusUnhealthy, "hot")
	is("c", at(6), v1.ResourceHealthStatusUnknown, "")
	changed, next := h.expire(at(3))
	if len(changed) > 0 || !next.Equal(at(7)) {
		t.Errorf("at 3 s %v are too old, and next at %v", changed, next.Sub(start))
	}
	changed, next = h.expire(at(7))
	check("expired", changed["d"], "b")
	if !next.Equal(at(31)) {
		t.Errorf("next at %v, want 31 s", next.Sub(start))
	}
	check("a new endpoint", h.update(newer, told("a", unhealthy, -1, ""), at(8)), "a")
	check("the old one", h.update(older, told("a", healthy, 0, ""), at(9)))
	check("the old one ends", h.removeReports(older))
	is("a", at(37), v1.ResourceHealthStatusUnhealthy, "")
	check("the new one ends", h.removeReports(newer), "a")
	is("a", at(10), v1.ResourceHealthStatusUnknown, "")
	check("the old one tells again", h.update(older, told("a", healthy, 1<<62, ""), at(11)), "a")
	is("a", at(3600*24*364), v1.ResourceHealthStatusHealthy, "")

	content, err := h.encode()
	if err != nil {
		t.Fatal(err)
	}
	h = &healths{drivers: map[string]*driverHealths{}}
	if err := h.decode(content, at(20)); err != nil {
		t.Fatal(err)
	}
	is("a", at(21), v1.ResourceHealthStatusHealthy, "")
	check("confirmed", h.update(older, told("a", healthy, 0, ""), at(22)))
	if err := h.decode([]byte(`{"d":{"Devices":{"p/z":{"Health":"Healthy"},"p/y":{"Health":"?"}}}}`), at(30)); err != nil {
		t.Fatal(err)
	}
	is("z", at(59), v1.ResourceHealthStatusHealthy, "")
	is("z", at(60), v1.ResourceHealthStatusUnknown, "")
	is("y", at(31), v1.ResourceHealthStatusUnknown, "")
}

func TestCut(t *testing.T) {
	for name, test := range map[string]struct{ in, want string }{
		"fits":        {strings.Repeat("x", 1024), strings.Repeat("x", 1024)},
		"too long":    {strings.Repeat("x", 1025), strings.Repeat("x", 1021) + "..."},
		"a character": {strings.Repeat("é", 513), strings.Repeat("é", 510) + "..."},
	} {
		if got := cut(test.in, 1024); got != test.want {
			t.Errorf("%s: %d bytes, want %d", name, len(got), len(test.want))
		}
	}
}
