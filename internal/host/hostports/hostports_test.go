package hostports

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// table is a machine with some sockets, each of which somebody has.
type table []Socket

func (t table) Sockets() ([]Socket, error) { return t, nil }

func (t table) Holder(s Socket) string {
	if s.Inode == 0 {
		return ""
	}
	return fmt.Sprintf("program %q (process 7)", "nginx")
}

func podWith(ports ...v1.ContainerPort) *v1.Pod {
	return &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Name: "side"}, {Name: "web", Ports: ports}}}}
}

func TestCheck(t *testing.T) {
	tcp := func(hostIP string) v1.ContainerPort {
		return v1.ContainerPort{ContainerPort: 80, HostPort: 8080, HostIP: hostIP, Protocol: v1.ProtocolTCP}
	}
	used := func(address string) string {
		return fmt.Sprintf(`host port 8080/TCP of container "web" is in use: program "nginx" (process 7) has %s; `+
			`end that program, or give the container another hostPort`, address)
	}
	usedOn := func(hostIP, address string) string {
		return strings.Replace(used(address), "TCP of", "TCP on "+hostIP+" of", 1)
	}
	tests := []struct {
		name     string
		pod      *v1.Pod
		listens  string // the address; "udp " before it for UDP
		want     string
		nameless bool
	}{
		{name: "all and all", pod: podWith(tcp("")), listens: "0.0.0.0:8080", want: used("0.0.0.0:8080")},
		{name: "all and one", pod: podWith(tcp("")), listens: "127.0.0.1:8080", want: used("127.0.0.1:8080")},
		{name: "all and all of IPv6", pod: podWith(tcp("")), listens: "[::]:8080", want: used("[::]:8080")},
		{name: "another port", pod: podWith(tcp("")), listens: "0.0.0.0:8081"},
		{name: "the container's port", pod: podWith(tcp("")), listens: "0.0.0.0:80"},
		{name: "another protocol", pod: podWith(tcp("")), listens: "udp 0.0.0.0:8080"},
		{name: "all of IPv4 and all of IPv6", pod: podWith(tcp("0.0.0.0")), listens: "[::]:8080", want: usedOn("0.0.0.0", "[::]:8080")},
		{name: "all of IPv4 and one of IPv4", pod: podWith(tcp("0.0.0.0")), listens: "10.0.0.1:8080", want: usedOn("0.0.0.0", "10.0.0.1:8080")},
		{name: "all of IPv4 and one of IPv6", pod: podWith(tcp("0.0.0.0")), listens: "[::1]:8080"},
		{name: "all of IPv6 and all of IPv4", pod: podWith(tcp("::")), listens: "0.0.0.0:8080"},
		{name: "all of IPv6 and one of IPv6", pod: podWith(tcp("::")), listens: "[::1]:8080", want: usedOn("::", "[::1]:8080")},
		{name: "one and the same", pod: podWith(tcp("10.0.0.1")), listens: "10.0.0.1:8080", want: usedOn("10.0.0.1", "10.0.0.1:8080")},
		{name: "one and the same, within IPv6", pod: podWith(tcp("10.0.0.1")), listens: "[::ffff:10.0.0.1]:8080", want: usedOn("10.0.0.1", "[::ffff:10.0.0.1]:8080")},
		{name: "one and another", pod: podWith(tcp("10.0.0.1")), listens: "127.0.0.1:8080"},
		{name: "one and all", pod: podWith(tcp("10.0.0.1")), listens: "0.0.0.0:8080", want: usedOn("10.0.0.1", "0.0.0.0:8080")},
		{name: "one of IPv6 and all of IPv4", pod: podWith(tcp("fd00::1")), listens: "0.0.0.0:8080"},
		{
			name: "UDP", pod: podWith(v1.ContainerPort{HostPort: 53, Protocol: v1.ProtocolUDP}), listens: "udp 127.0.0.1:53",
			want: `host port 53/UDP of container "web" is in use: program "nginx" (process 7) has 127.0.0.1:53; end that program, or give the container another hostPort`,
		},
		{name: "no protocol is TCP", pod: podWith(v1.ContainerPort{HostPort: 8080}), listens: "0.0.0.0:8080", want: used("0.0.0.0:8080")},
		{
			name: "nobody is found", pod: podWith(tcp("")), listens: "0.0.0.0:8080", nameless: true,
			want: strings.Replace(used("0.0.0.0:8080"), `program "nginx" (process 7)`, "a program of this machine", 1),
		},
		{name: "a container's port alone", pod: podWith(v1.ContainerPort{ContainerPort: 8080}), listens: "0.0.0.0:8080"},
		{name: "the host's network", pod: func() *v1.Pod {
			p := podWith(tcp(""))
			p.Spec.HostNetwork = true
			return p
		}(), listens: "0.0.0.0:8080"},
		{name: "the second port, of an init container", pod: &v1.Pod{Spec: v1.PodSpec{InitContainers: []v1.Container{
			{Name: "web", Ports: []v1.ContainerPort{{HostPort: 1}, tcp("")}},
		}}}, listens: "0.0.0.0:8080", want: used("0.0.0.0:8080")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := Socket{Protocol: v1.ProtocolTCP, Inode: 1}
			address, isUDP := strings.CutPrefix(tt.listens, "udp ")
			if isUDP {
				s.Protocol = v1.ProtocolUDP
			}
			s.Address = netip.MustParseAddrPort(address)
			if tt.nameless {
				s.Inode = 0
			}
			got := ""
			if err := Check(table{s}, tt.pod); err != nil {
				got = err.Error()
			}
			if got != tt.want {
				t.Errorf("got  %q\nwant %q", got, tt.want)
			}
		})
	}
}

// What this process opens is found in the kernel's tables, with its address and with this program
// as the one that has it.
func TestHost(t *testing.T) {
	h := Host{Proc: "/proc"}
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	conn, err := net.Dial("tcp4", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	packets, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer packets.Close()
	sockets, err := h.Sockets()
	if err != nil {
		t.Fatal(err)
	}
	find := func(protocol v1.Protocol, address string) (found []Socket) {
		for _, s := range sockets {
			if s.Protocol == protocol && s.Address.String() == address {
				found = append(found, s)
			}
		}
		return found
	}
	for _, want := range []struct {
		protocol v1.Protocol
		address  string
		n        int
	}{
		{v1.ProtocolTCP, listener.Addr().String(), 1},
		{v1.ProtocolTCP, conn.LocalAddr().String(), 0}, // connected: it is open to nobody
		{v1.ProtocolUDP, packets.LocalAddr().String(), 1},
	} {
		found := find(want.protocol, want.address)
		if len(found) != want.n {
			t.Errorf("%s %s: found %v, want %d", want.protocol, want.address, found, want.n)
			continue
		}
		for _, s := range found {
			if holder := h.Holder(s); !strings.HasSuffix(holder, fmt.Sprintf("(process %d)", os.Getpid())) {
				t.Errorf("%s %s: is of %q", want.protocol, want.address, holder)
			}
		}
	}
	if holder := h.Holder(Socket{Inode: 1<<63 - 1}); holder != "" {
		t.Errorf("a socket that nobody has is of %q", holder)
	}
}

func TestTablesThatAreMissingOrBroken(t *testing.T) {
	const head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	line := func(address, state, inode string) string {
		return "   0: " + address + " 00000000:0000 " + state + " 00000000:00000000 00:00000000 00000000     0        0 " + inode + " 1 0 100 0 0 10 0\n"
	}
	for _, tc := range []struct {
		name, tcp6 string
		want       string
	}{
		{"no table", "", "[] <nil>"},
		{"nothing open", head, "[] <nil>"},
		{"a connection", head + line("00000000000000000000000000000000:1F90", "01", "5"), "[] <nil>"},
		{"all addresses", head + line("00000000000000000000000000000000:1F90", "0A", "5"), "[{TCP [::]:8080 5}] <nil>"},
		{"cut off", head + "   0: 0000", "[] <nil>"},
		{"no address", head + line("xyz:1F90", "0A", "5"), `[] PROC/net/tcp6: address "xyz:1F90": encoding/hex: invalid byte: U+0078 'x'`},
		{"half an address", head + line("000000:1F90", "0A", "5"), `[] PROC/net/tcp6: address "000000:1F90": is neither of IPv4 nor of IPv6`},
		{"no port", head + line("00000000:", "0A", "5"), `[] PROC/net/tcp6: address "00000000:": strconv.ParseUint: parsing "": invalid syntax`},
		{"no inode", head + line("00000000:1F90", "0A", "x"), `[] PROC/net/tcp6: strconv.ParseUint: parsing "x": invalid syntax`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			proc := t.TempDir()
			if err := os.Mkdir(filepath.Join(proc, "net"), 0o755); err != nil {
				t.Fatal(err)
			}
			if tc.tcp6 != "" {
				if err := os.WriteFile(filepath.Join(proc, "net", "tcp6"), []byte(tc.tcp6), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			sockets, err := Host{Proc: proc}.Sockets()
			if got := strings.ReplaceAll(fmt.Sprint(sockets, " ", err), proc, "PROC"); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}
