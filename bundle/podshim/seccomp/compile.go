package seccomp

import (
	"fmt"
	"math"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Offsets in struct seccomp_data, on a little-endian machine.
const (
	offNumber = 0
	offArch   = 4
	offArgs   = 16
)

// x32Bit is set in the number of an x32 call, whose architecture is that of x86_64.
const x32Bit = 1 << 30

// unknownArch is the action for calls of an architecture that the profile does not name, as in
// libseccomp.
const unknownArch = unix.SECCOMP_RET_KILL_THREAD

// span is a range of call numbers, up to the next span, with the same rules.
type span struct {
	from   uint32
	rules  []rule
	width  width
	action uint32 // the action if no rule matches
}

func (s span) same(o span) bool {
	return len(s.rules) == 0 && len(o.rules) == 0 && s.action == o.action
}

// spans returns the spans of one ABI in order, beginning with first.
func (p *profile) spans(a specs.Arch, first uint32) []span {
	all := []span{{from: first, action: p.defaultAction}}
	add := func(s span) {
		if last := &all[len(all)-1]; last.from == s.from {
			*last = s
			if n := len(all); n > 1 && all[n-2].same(s) {
				all = all[:n-1]
			}
		} else if !last.same(s) {
			all = append(all, s)
		}
	}
	var numbers []uint32
	for n := range p.calls[a] {
		numbers = append(numbers, n)
	}
	slices.Sort(numbers)
	for _, n := range numbers {
		s := span{from: n, rules: effective(p.calls[a][n]), width: tables[a].width, action: p.defaultAction}
		if len(s.rules[0].conditions) == 0 {
			s.rules, s.action = nil, s.rules[0].action
		}
		add(s)
		add(span{from: n + 1, action: p.defaultAction})
	}
	if last, ok := p.last[a]; ok {
		add(span{from: last + 1, action: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)})
	}
	return all
}

// compile returns the program. It checks for the machine's own calls first, and finds a call by
// binary search.
func (p *profile) compile() []bpf.Instruction {
	program := []bpf.Instruction{bpf.LoadAbsolute{Off: offArch, Size: 4}}
	for _, a := range p.abis {
		if a == specs.ArchX32 { // handled with x86_64
			continue
		}
		spans := p.spans(a, 0)
		if a == specs.ArchX86_64 {
			spans = append(spans, p.x32()...)
		}
		body := append([]bpf.Instruction{bpf.LoadAbsolute{Off: offNumber, Size: 4}}, search(spans)...)
		program = append(program, bpf.JumpIf{Cond: bpf.JumpEqual, Val: tables[a].id, SkipTrue: 1}, bpf.Jump{Skip: uint32(len(body))})
		program = append(program, body...)
	}
	return append(program, bpf.RetConstant{Val: unknownArch})
}

// x32 returns the spans of calls with x32Bit. If the profile does not include x32, their
// architecture is unknown, except for -1, with which a tracer skips a call.
func (p *profile) x32() []span {
	if _, ok := p.calls[specs.ArchX32]; ok {
		return p.spans(specs.ArchX32, x32Bit)
	}
	return []span{{from: x32Bit, action: unknownArch}, {from: math.MaxUint32, action: p.defaultAction}}
}

// search finds the span of the loaded number.
func search(spans []span) []bpf.Instruction {
	if len(spans) == 1 {
		return spans[0].instructions()
	}
	middle := len(spans) / 2
	lower, upper := search(spans[:middle]), search(spans[middle:])
	var out []bpf.Instruction
	if len(lower) <= math.MaxUint8 {
		out = append(out, bpf.JumpIf{Cond: bpf.JumpGreaterOrEqual, Val: spans[middle].from, SkipTrue: uint8(len(lower))})
	} else {
		out = append(out, bpf.JumpIf{Cond: bpf.JumpGreaterOrEqual, Val: spans[middle].from, SkipFalse: 1}, bpf.Jump{Skip: uint32(len(lower))})
	}
	return append(append(out, lower...), upper...)
}

func (s span) instructions() []bpf.Instruction {
	var out []bpf.Instruction
	for _, r := range s.rules {
		out = append(out, r.instructions(s.width)...)
	}
	return append(out, bpf.RetConstant{Val: s.action})
}

// target is the target of a comparison.
type target int

const (
	next    target = iota // the following instruction
	matched               // the condition is true: to the following condition
	failed                // it is false: to the following rule
)

// line is an instruction of a condition, with its targets if it is a comparison.
type line struct {
	instruction     bpf.Instruction
	onTrue, onFalse target
}

func load(offset uint32) line {
	return line{instruction: bpf.LoadAbsolute{Off: offset, Size: 4}}
}

func compare(test bpf.JumpTest, value uint32, yes, no target) line {
	return line{bpf.JumpIf{Cond: test, Val: value}, yes, no}
}

// condition returns the lines of a condition, beginning with the upper half of a wide argument.
func condition(c specs.LinuxSeccompArg, w width) []line {
	low := uint32(offArgs + 8*c.Index)
	high := low + 4
	upper, lower := uint32(c.Value>>32), uint32(c.Value)
	yes, no := matched, failed
	switch c.Op {
	case specs.OpLessThan, specs.OpLessEqual, specs.OpNotEqual: // the inverse of the following
		yes, no = failed, matched
	}
	switch c.Op {
	case specs.OpMaskedEqual: // the value is the mask
		half := func(offset, mask, want uint32, yes target) []line {
			if mask == 0 {
				return nil
			}
			return []line{load(offset), {instruction: bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: mask}}, compare(bpf.JumpEqual, want&mask, yes, failed)}
		}
		out := half(low, lower, uint32(c.ValueTwo), matched)
		if w == wide {
			out = append(half(high, upper, uint32(c.ValueTwo>>32), next), out...)
		}
		if len(out) > 0 {
			out[len(out)-1].onTrue = matched
		}
		return out
	case specs.OpEqualTo, specs.OpNotEqual:
		out := []line{load(low), compare(bpf.JumpEqual, lower, yes, no)}
		if w == wide {
			out = append([]line{load(high), compare(bpf.JumpEqual, upper, next, no)}, out...)
		}
		return out
	}
	test := bpf.JumpGreaterThan
	if c.Op == specs.OpGreaterEqual || c.Op == specs.OpLessThan {
		test = bpf.JumpGreaterOrEqual
	}
	out := []line{load(low), compare(test, lower, yes, no)}
	if w == wide {
		out = append([]line{load(high), compare(bpf.JumpGreaterThan, upper, yes, next), compare(bpf.JumpEqual, upper, next, no)}, out...)
	}
	return out
}

// instructions returns the action if all conditions are true, and falls through otherwise. A rule
// has at most six conditions of six lines, so that a jump can reach its end.
func (r rule) instructions(w width) []bpf.Instruction {
	var lines []line
	var ends []int // for each line, the end of its condition
	for _, c := range r.conditions {
		lines = append(lines, condition(c, w)...)
		for len(ends) < len(lines) {
			ends = append(ends, len(lines))
		}
	}
	var out []bpf.Instruction
	for i, l := range lines {
		if j, ok := l.instruction.(bpf.JumpIf); ok {
			skip := map[target]uint8{next: 0, matched: uint8(ends[i] - i - 1), failed: uint8(len(lines) - i)}
			j.SkipTrue, j.SkipFalse = skip[l.onTrue], skip[l.onFalse]
			l.instruction = j
		}
		out = append(out, l.instruction)
	}
	return append(out, bpf.RetConstant{Val: r.action})
}

// maxProgram is the kernel's maximum number of instructions.
const maxProgram = 4096

func assemble(program []bpf.Instruction) ([]bpf.RawInstruction, error) {
	if len(program) > maxProgram {
		return nil, fmt.Errorf("linux.seccomp: the filter has %d instructions, and the kernel takes %d: name fewer conditions or architectures", len(program), maxProgram)
	}
	raw, err := bpf.Assemble(program)
	if err != nil {
		return nil, fmt.Errorf("linux.seccomp: %w", err)
	}
	return raw, nil
}
