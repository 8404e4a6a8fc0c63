package cni

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"
)

// leases are the leased addresses of a network: a file for each address that names its owner, in
// host-local's directory and format. The directory must be locked for changes.
type leases struct {
	dir  string
	lock *os.File
}

// attachment is a pod's interface in a network.
type attachment struct{ id, ifName string }

// lineBreak separates the ID and the interface in a lease.
const lineBreak = "\r\n"

// lastPrefix begins the name of the file with the last leased address of a range set.
const lastPrefix = "last_reserved_ip."

// openLeases locks the leases of a network.
func openLeases(c *config) (*leases, error) {
	l := &leases{dir: filepath.Join(c.DataDir, c.Name)}
	if err := os.MkdirAll(l.dir, 0o755); err != nil {
		return nil, fail(types.ErrIOFailure, "leases of addresses: %v", err)
	}
	f, err := l.openLock()
	if err == nil {
		for {
			err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
			if !errors.Is(err, unix.EINTR) {
				break
			}
		}
	}
	if err != nil {
		return nil, fail(types.ErrIOFailure, "lock the leases of addresses: %v", err)
	}
	l.lock = f
	return l, nil
}

// openLock opens the lock file. It removes a directory in its place, which would block all pods. A
// concurrent call must not remove the file that another one has created since: the slash makes the
// rename fail on anything but a directory.
func (l *leases) openLock() (*os.File, error) {
	name := filepath.Join(l.dir, "lock")
	for {
		f, err := os.OpenFile(name, os.O_CREATE|os.O_RDONLY, 0o600)
		if !errors.Is(err, unix.EISDIR) {
			return f, err
		}
		aside, err := os.MkdirTemp(l.dir, ".damaged-")
		if err != nil {
			return nil, err
		}
		err = unix.Rename(name+"/", aside)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
			err = nil // another call was faster
		}
		if err = errors.Join(err, os.RemoveAll(aside)); err != nil {
			return nil, err
		}
	}
}

// close unlocks the leases. It is idempotent.
func (l *leases) close() { _ = l.lock.Close() }

// list returns the owner of each leased address.
func (l *leases) list() (map[netip.Addr]attachment, error) {
	entries, err := readNames(l.dir)
	if err != nil {
		return nil, fail(types.ErrIOFailure, "leases of addresses: %v", err)
	}
	all := make(map[netip.Addr]attachment, len(entries))
	for _, name := range entries {
		a, err := netip.ParseAddr(name)
		if err != nil {
			continue // the lock file and the last leased addresses
		}
		owner, err := l.owner(a)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EISDIR) { // a directory is no lease, but take skips its address
			continue
		}
		if err != nil {
			return nil, fail(types.ErrIOFailure, "lease of %s: %v", a, err)
		}
		all[a] = owner
	}
	return all, nil
}

func readNames(dir string) ([]string, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.Readdirnames(-1)
}

// owner returns the owner of an address.
func (l *leases) owner(a netip.Addr) (attachment, error) {
	fd, err := unix.Open(filepath.Join(l.dir, a.String()), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return attachment{}, err
	}
	defer unix.Close(fd)
	var b [1024]byte
	n, err := unix.Read(fd, b[:])
	if err != nil {
		return attachment{}, err
	}
	// A lease without an interface is from an old host-local.
	id, ifName, _ := strings.Cut(strings.TrimSpace(string(b[:n])), lineBreak)
	return attachment{strings.TrimSpace(id), strings.TrimSpace(ifName)}, nil
}

// holds reports whether a lease with this owner belongs to the attachment. A lease without an owner
// is left by a plugin that was killed before it wrote one.
func (a attachment) holds(owner attachment) bool {
	return owner == a || owner == attachment{id: a.id} || owner == attachment{}
}

// of returns the addresses of an attachment.
func (a attachment) of(all map[netip.Addr]attachment) []netip.Addr {
	var out []netip.Addr
	for address, owner := range all {
		if a.holds(owner) {
			out = append(out, address)
		}
	}
	return out
}

// lease assigns an address of the range set with this number: the first free one after the last
// leased one.
func (l *leases) lease(set rangeSet, number int, to attachment) (netip.Addr, addressRange, error) {
	lastFile := filepath.Join(l.dir, lastPrefix+strconv.Itoa(number))
	text, err := os.ReadFile(lastFile)
	if errors.Is(err, unix.EISDIR) { // a directory could not be written either
		err = os.RemoveAll(lastFile)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return netip.Addr{}, addressRange{}, fail(types.ErrIOFailure, "the address given last: %v", err)
	}
	last, _ := netip.ParseAddr(strings.TrimSpace(string(text))) // an invalid address counts as none
	for at := newWalk(set, last); at.next(); {
		r := set[at.in]
		if at.address == r.Gateway {
			continue
		}
		ok, err := l.take(at.address, to)
		if err != nil {
			return netip.Addr{}, addressRange{}, fail(types.ErrIOFailure, "lease %s: %v", at.address, err)
		}
		if !ok {
			continue
		}
		if err := os.WriteFile(lastFile, []byte(at.address.String()), 0o600); err != nil {
			return netip.Addr{}, addressRange{}, fail(types.ErrIOFailure, "lease %s: %v", at.address, errors.Join(err, l.release(at.address)))
		}
		return at.address, r, nil
	}
	return netip.Addr{}, addressRange{}, fail(types.ErrTryAgainLater, "no address of %s is free: end pods, or give the node a larger range", set)
}

// take creates the file of a lease. It returns false if the address is taken.
func (l *leases) take(a netip.Addr, to attachment) (bool, error) {
	name := filepath.Join(l.dir, a.String())
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	_, err = f.WriteString(to.id + lineBreak + to.ifName)
	if err = errors.Join(err, f.Close()); err != nil {
		return false, errors.Join(err, os.Remove(name))
	}
	return true, nil
}

// release releases an address.
func (l *leases) release(a netip.Addr) error {
	err := os.Remove(filepath.Join(l.dir, a.String()))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fail(types.ErrIOFailure, "lease of %s: %v", a, err)
	}
	return nil
}

// walk iterates once over all addresses of a set, beginning after one of them.
type walk struct {
	set     rangeSet
	in      int // index of the range of address
	address netip.Addr
	until   netip.Addr // the last address of the walk; invalid before its first
}

// newWalk begins after last, or at the beginning of the set if last is not in it.
func newWalk(set rangeSet, last netip.Addr) *walk {
	for i, r := range set {
		if last.IsValid() && r.contains(last) {
			return &walk{set: set, in: i, address: last, until: last}
		}
	}
	end := len(set) - 1
	return &walk{set: set, in: end, address: set[end].End, until: set[end].End}
}

// next advances to the next address. It returns false after the last.
func (w *walk) next() bool {
	if !w.until.IsValid() {
		return false
	}
	if w.address == w.set[w.in].End {
		w.in = (w.in + 1) % len(w.set)
		w.address = w.set[w.in].Start
	} else {
		w.address = w.address.Next()
	}
	if w.address == w.until {
		w.until = netip.Addr{}
	}
	return true
}

func (set rangeSet) String() string {
	var out []string
	for _, r := range set {
		out = append(out, r.Subnet.String())
	}
	return strings.Join(out, ",")
}

// free reports whether the set has a free address.
func (set rangeSet) free(all map[netip.Addr]attachment) bool {
	for at := newWalk(set, netip.Addr{}); at.next(); {
		if _, taken := all[at.address]; !taken && at.address != set[at.in].Gateway {
			return true
		}
	}
	return false
}
