package hostports

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// Host is this machine's Table.
type Host struct {
	// Proc is where proc(5) is mounted.
	Proc string
}

// tables are the kernel's socket tables, with the state of sockets that accept traffic from any
// peer (include/net/tcp_states.h).
var tables = []struct {
	file     string
	protocol v1.Protocol
	open     string
}{
	{"tcp", v1.ProtocolTCP, "0A"}, // TCP_LISTEN
	{"tcp6", v1.ProtocolTCP, "0A"},
	{"udp", v1.ProtocolUDP, "07"}, // TCP_CLOSE: bound and not connected
	{"udp6", v1.ProtocolUDP, "07"},
}

// Sockets reads the kernel's tables. Tables that do not exist, as without IPv6, are skipped.
func (h Host) Sockets() ([]Socket, error) {
	var out []Socket
	for _, t := range tables {
		f, err := os.Open(filepath.Join(h.Proc, "net", t.file))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		lines := bufio.NewScanner(f)
		lines.Scan() // column names
		for lines.Scan() {
			fields := strings.Fields(lines.Text())
			if len(fields) < 10 || fields[3] != t.open {
				continue
			}
			address, err := parseAddress(fields[1])
			if err != nil {
				return nil, errors.Join(fmt.Errorf("%s: %w", f.Name(), err), f.Close())
			}
			inode, err := strconv.ParseUint(fields[9], 10, 64)
			if err != nil {
				return nil, errors.Join(fmt.Errorf("%s: %w", f.Name(), err), f.Close())
			}
			out = append(out, Socket{Protocol: t.protocol, Address: address, Inode: inode})
		}
		if err := errors.Join(lines.Err(), f.Close()); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// parseAddress parses "0100007F:1F90": the address as 32-bit words in the machine's byte order, and
// the port.
func parseAddress(text string) (netip.AddrPort, error) {
	fail := func(err error) (netip.AddrPort, error) {
		return netip.AddrPort{}, fmt.Errorf("address %q: %w", text, err)
	}
	host, number, _ := strings.Cut(text, ":")
	port, err := strconv.ParseUint(number, 16, 16)
	if err != nil {
		return fail(err)
	}
	b, err := hex.DecodeString(host)
	if err != nil {
		return fail(err)
	}
	for i := 0; i+4 <= len(b); i += 4 {
		binary.NativeEndian.PutUint32(b[i:], binary.BigEndian.Uint32(b[i:]))
	}
	address, ok := netip.AddrFromSlice(b)
	if !ok {
		return fail(errors.New("is neither of IPv4 nor of IPv6"))
	}
	return netip.AddrPortFrom(address, uint16(port)), nil
}

// Holder searches the open files of all processes for the socket, and returns the first match.
func (h Host) Holder(s Socket) string {
	links, err := filepath.Glob(filepath.Join(h.Proc, "[0-9]*", "fd", "*"))
	if err != nil || s.Inode == 0 {
		return ""
	}
	want := fmt.Sprintf("socket:[%d]", s.Inode)
	for _, link := range links {
		if target, err := os.Readlink(link); err != nil || target != want {
			continue // closed meanwhile, or another file
		}
		process := filepath.Dir(filepath.Dir(link))
		name, err := os.ReadFile(filepath.Join(process, "comm"))
		if err != nil {
			return ""
		}
		return fmt.Sprintf("program %q (process %s)", strings.TrimSpace(string(name)), filepath.Base(process))
	}
	return ""
}
