package cni

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"
)

// A network has one nftables table, whose rules do not depend on the number of pods:
//
//	set ranges4, ranges6      the pods' ranges, and addresses of pods from former ranges
//	map ports4, ports6        protocol . host port → address . port of the pod
//	map addrports4, addrports6  host address . protocol . host port → the same
//	chain prerouting, output  traffic to the host jumps to hostports
//	chain hostports           translates by the maps, and marks what must be masqueraded
//	chain postrouting         masquerades
type ruleset struct {
	conn       *nftables.Conn
	table      *nftables.Table
	masquerade bool // traffic that leaves the ranges
	families   []family
	chains     []*nftables.Chain
}

// family is the part of the ruleset for IPv4 or IPv6.
type family struct {
	proto     byte   // of netfilter
	size      uint32 // bytes of an address
	source    uint32 // offsets in the header
	dest      uint32
	multicast netip.Prefix
	ranges    *nftables.Set
	ports     *nftables.Set
	addrPorts *nftables.Set
}

// masqueradeMark marks packets that a host port has redirected into the pods' network. The
// reference plugins use the same bit for this.
const masqueradeMark = 0x2000

// openRuleset connects to nftables. It creates nothing; ensure does.
func openRuleset(c *config) (*ruleset, error) {
	conn, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	r := &ruleset{
		conn:       conn,
		table:      &nftables.Table{Name: tableName(c.Name), Family: nftables.TableFamilyINet},
		masquerade: c.Masquerade,
	}
	v4 := family{proto: unix.NFPROTO_IPV4, size: 4, source: 12, dest: 16, multicast: netip.MustParsePrefix("224.0.0.0/4")}
	v6 := family{proto: unix.NFPROTO_IPV6, size: 16, source: 8, dest: 24, multicast: netip.MustParsePrefix("ff00::/8")}
	for i, f := range []family{v4, v6} {
		digit, kind := []string{"4", "6"}[i], []nftables.SetDatatype{nftables.TypeIPAddr, nftables.TypeIP6Addr}[i]
		target := nftables.MustConcatSetType(kind, nftables.TypeInetService)
		f.ranges = &nftables.Set{Table: r.table, Name: "ranges" + digit, KeyType: kind, Interval: true}
		f.ports = &nftables.Set{
			Table: r.table, Name: "ports" + digit, IsMap: true, Concatenation: true, DataType: target,
			KeyType: nftables.MustConcatSetType(nftables.TypeInetProto, nftables.TypeInetService),
		}
		f.addrPorts = &nftables.Set{
			Table: r.table, Name: "addrports" + digit, IsMap: true, Concatenation: true, DataType: target,
			KeyType: nftables.MustConcatSetType(kind, nftables.TypeInetProto, nftables.TypeInetService),
		}
		r.families = append(r.families, f)
	}
	hook := func(name string, hook *nftables.ChainHook, priority *nftables.ChainPriority) *nftables.Chain {
		return &nftables.Chain{Table: r.table, Name: name, Type: nftables.ChainTypeNAT, Hooknum: hook, Priority: priority}
	}
	r.chains = []*nftables.Chain{
		{Table: r.table, Name: "hostports"}, // before the chains that jump to it
		hook("prerouting", nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest),
		hook("output", nftables.ChainHookOutput, nftables.ChainPriorityNATDest),
		hook("postrouting", nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource),
	}
	return r, nil
}

func tableName(network string) string { return "cni-" + network }

func (r *ruleset) close() { _ = r.conn.CloseLasting() }

// commit sends the collected changes in one transaction.
func (r *ruleset) commit(what string) error {
	if err := r.conn.Flush(); err != nil {
		return fmt.Errorf("nftables: %s: %w", what, err)
	}
	return nil
}

// rules returns the rules of each chain, in the order of chains.
func (r *ruleset) rules() [][][]expr.Any {
	var hostports, postrouting [][]expr.Any
	for _, f := range r.families {
		// Traffic from pods: otherwise replies would come from another address than the requested
		// one.
		source := f.in(f.source, f.ranges.Name)
		hostports = append(hostports, f.rule(source, f.toAddrPort(), marked(), f.translate()), f.rule(source, f.toPort(), marked(), f.translate()))
		if f.proto == unix.NFPROTO_IPV4 {
			// Only the host itself can reply to a loopback address.
			loopback := f.within(f.source, netip.MustParsePrefix("127.0.0.0/8"), expr.CmpOpEq)
			hostports = append(hostports, f.rule(loopback, f.toAddrPort(), marked(), f.translate()), f.rule(loopback, f.toPort(), marked(), f.translate()))
		} else {
			// IPv6 does not route ::1 elsewhere: refuse a connection, so that it does not hang.
			hostports = append(hostports, f.rule(f.within(f.dest, netip.MustParsePrefix("::1/128"), expr.CmpOpEq), verdict(expr.VerdictReturn)))
		}
		hostports = append(hostports, f.rule(f.toAddrPort(), f.translate()), f.rule(f.toPort(), f.translate()))
		if r.masquerade {
			postrouting = append(postrouting, f.rule(f.in(f.source, f.ranges.Name), f.notIn(f.dest, f.ranges.Name),
				f.within(f.dest, f.multicast, expr.CmpOpNeq), []expr.Any{&expr.Masq{}}))
		}
	}
	postrouting = append(postrouting, []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: native(masqueradeMark), Xor: native(0)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: native(masqueradeMark)},
		&expr.Masq{},
	})
	local := []expr.Any{
		&expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: native(unix.RTN_LOCAL)},
		&expr.Verdict{Kind: expr.VerdictJump, Chain: "hostports"},
	}
	return [][][]expr.Any{hostports, {local}, {local}, postrouting}
}

func native(v uint32) []byte { return binaryutil.NativeEndian.PutUint32(v) }

// rule joins parts to a rule for packets of the family.
func (f family) rule(parts ...[]expr.Any) []expr.Any {
	return slices.Concat(append([][]expr.Any{{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{f.proto}},
	}}, parts...)...)
}

// in matches packets whose address at the offset is in a set.
func (f family) in(offset uint32, set string) []expr.Any {
	return []expr.Any{f.load(offset, 1), &expr.Lookup{SourceRegister: 1, SetName: set}}
}

// notIn matches packets whose address at the offset is not in a set.
func (f family) notIn(offset uint32, set string) []expr.Any {
	return []expr.Any{f.load(offset, 1), &expr.Lookup{SourceRegister: 1, SetName: set, Invert: true}}
}

func (f family) load(offset, register uint32) expr.Any {
	return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: f.size}
}

// within matches packets whose address at the offset is in a prefix, or not, depending on op.
func (f family) within(offset uint32, p netip.Prefix, op expr.CmpOp) []expr.Any {
	mask := toIPNet(p).Mask
	return []expr.Any{
		f.load(offset, 1),
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: f.size, Mask: mask, Xor: make([]byte, f.size)},
		&expr.Cmp{Op: op, Register: 1, Data: p.Addr().AsSlice()},
	}
}

// firstWord is the first 4-byte register: four of them form a 16-byte register NFT_REG_n, these
// NFT_REG_1.
const firstWord = unix.NFT_REG32_00

// toPort looks up protocol and port. The result is in register 1.
func (f family) toPort() []expr.Any { return lookUp(f.ports.Name, firstWord, nil) }

// toAddrPort looks up address, protocol and port.
func (f family) toAddrPort() []expr.Any {
	return lookUp(f.addrPorts.Name, firstWord+f.size/4, f.load(f.dest, 1))
}

// lookUp looks up a key in a map: what before loads, then protocol and port from register at on.
func lookUp(name string, at uint32, before expr.Any) []expr.Any {
	var all []expr.Any
	if before != nil {
		all = append(all, before)
	}
	return append(all,
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: at},
		&expr.Payload{DestRegister: at + 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Lookup{SourceRegister: 1, DestRegister: 1, IsDestRegSet: true, SetName: name})
}

// marked marks a packet for masquerading. It preserves registers 1 and 2.
func marked() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: unix.NFT_REG_4},
		&expr.Bitwise{SourceRegister: unix.NFT_REG_4, DestRegister: unix.NFT_REG_4, Len: 4, Mask: native(^uint32(masqueradeMark)), Xor: native(masqueradeMark)},
		&expr.Meta{Key: expr.MetaKeyMARK, Register: unix.NFT_REG_4, SourceRegister: true},
	}
}

// translate redirects a packet to the address and port in register 1.
func (f family) translate() []expr.Any {
	return []expr.Any{&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(f.proto), RegAddrMin: 1, RegProtoMin: firstWord + f.size/4, Specified: true}}
}

func verdict(kind expr.VerdictKind) []expr.Any { return []expr.Any{&expr.Verdict{Kind: kind}} }

// ensure creates or repairs the table, which another program may have emptied.
func (r *ruleset) ensure(c *config, l *leases) error {
	rules := r.rules()
	mark := r.fingerprint(rules)
	if r.inPlace(rules, mark) {
		return r.ensureRanges(c, l)
	}
	r.conn.AddTable(r.table)
	for _, f := range r.families {
		for _, s := range []*nftables.Set{f.ranges, f.ports, f.addrPorts} {
			if err := r.conn.AddSet(s, nil); err != nil {
				return fmt.Errorf("nftables: set %s: %w", s.Name, err)
			}
		}
	}
	for i, chain := range r.chains {
		r.conn.AddChain(chain)
		r.conn.FlushChain(chain)
		for _, exprs := range rules[i] {
			r.conn.AddRule(&nftables.Rule{Table: r.table, Chain: chain, Exprs: exprs, UserData: mark})
		}
	}
	if err := r.commit("make table " + r.table.Name); err != nil {
		return err
	}
	step("ruleset")
	return r.ensureRanges(c, l)
}

// fingerprint returns a rule comment that identifies the ruleset.
func (r *ruleset) fingerprint(rules [][][]expr.Any) []byte {
	sum := sha256.New()
	for i, chain := range rules {
		for _, exprs := range chain {
			for _, e := range exprs {
				b, err := expr.Marshal(byte(r.table.Family), e)
				fmt.Fprintln(sum, i, b, err)
			}
		}
	}
	return userdata.AppendString(nil, userdata.TypeComment, "berth-cni "+hex.EncodeToString(sum.Sum(nil))[:16])
}

// inPlace reports whether the table has the rules with this fingerprint.
func (r *ruleset) inPlace(rules [][][]expr.Any, mark []byte) bool {
	for i, chain := range r.chains {
		have, err := r.conn.GetRules(r.table, chain)
		if err != nil || len(have) != len(rules[i]) {
			return false
		}
		for _, rule := range have {
			if !bytes.Equal(rule.UserData, mark) {
				return false
			}
		}
	}
	return true
}

// ensureRanges puts the ranges into the table. If they have changed, it adds the addresses of pods
// from the former ranges.
func (r *ruleset) ensureRanges(c *config, l *leases) error {
	for _, f := range r.families {
		have, err := r.conn.GetSetElements(f.ranges)
		if err != nil {
			return fmt.Errorf("nftables: set %s: %w", f.ranges.Name, err)
		}
		if covers(have, f.intervals(c.subnets())) {
			continue
		}
		all, err := l.list()
		if err != nil {
			return err
		}
		ranges := c.subnets()
		for a := range all {
			ranges = append(ranges, netip.PrefixFrom(a, a.BitLen()))
		}
		r.conn.FlushSet(f.ranges)
		if err := r.conn.SetAddElements(f.ranges, elements(f.intervals(ranges))); err != nil {
			return fmt.Errorf("nftables: set %s: %w", f.ranges.Name, err)
		}
		if err := r.commit("set " + f.ranges.Name); err != nil {
			return err
		}
	}
	return nil
}

// interval is an inclusive range of addresses.
type interval struct{ first, last netip.Addr }

// intervals returns the family's ranges in ascending order. It merges adjacent and overlapping
// ranges, which the kernel rejects.
func (f family) intervals(ranges []netip.Prefix) (out []interval) {
	for _, p := range ranges {
		if uint32(p.Addr().BitLen()/8) == f.size {
			out = append(out, interval{p.Addr(), lastAddress(p)})
		}
	}
	slices.SortFunc(out, func(a, b interval) int { return a.first.Compare(b.first) })
	merged := out[:0]
	for _, i := range out {
		if n := len(merged); n > 0 && !merged[n-1].endsBefore(i) {
			if merged[n-1].last.Less(i.last) {
				merged[n-1].last = i.last
			}
			continue
		}
		merged = append(merged, i)
	}
	return merged
}

// endsBefore reports whether there is an address between two intervals.
func (i interval) endsBefore(next interval) bool {
	after := i.last.Next()
	return after.IsValid() && after.Less(next.first)
}

// elements returns the set elements of intervals: the start of each, and the address after its end.
func elements(all []interval) (out []nftables.SetElement) {
	for _, i := range all {
		out = append(out, nftables.SetElement{Key: i.first.AsSlice()})
		if end := i.last.Next(); end.IsValid() {
			out = append(out, nftables.SetElement{Key: end.AsSlice(), IntervalEnd: true})
		}
	}
	return out
}

// covers reports whether a set with these elements contains all intervals.
func covers(have []nftables.SetElement, wanted []interval) bool {
	for _, w := range wanted {
		// The last element up to the interval's first address must be a start, and no end may
		// follow up to its last address.
		in, at := false, netip.Addr{}
		ends := false
		for _, e := range have {
			key, ok := netip.AddrFromSlice(e.Key)
			if !ok {
				return false
			}
			if !w.first.Less(key) && (!at.IsValid() || at.Less(key) || at == key && !e.IntervalEnd) {
				in, at = !e.IntervalEnd, key
			}
			ends = ends || e.IntervalEnd && w.first.Less(key) && !w.last.Less(key)
		}
		if !in || ends {
			return false
		}
	}
	return true
}

// remove removes the table.
func (r *ruleset) remove() error {
	r.conn.DelTable(r.table)
	err := r.commit("remove table " + r.table.Name)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}
