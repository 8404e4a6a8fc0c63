package seccomp

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"sync"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Filter is a program for seccomp(2).
type Filter struct {
	// Flags are the flags of the call.
	Flags uint64
	// Program is the instructions in the kernel's memory layout.
	Program []byte

	vm *bpf.VM
}

// InstructionSize is the size of an instruction in bytes.
const InstructionSize = 8

// filters caches filters by the hash of the profile. All pods use the same few.
var filters struct {
	sync.Mutex
	byHash map[[sha256.Size]byte]*Filter
}

// maxCached is the number of cached filters at which the cache is cleared.
const maxCached = 128

// Compile returns the filter of a profile for the processor that this program runs on. A profile
// that is invalid or not supported is an *Error.
func Compile(p *specs.LinuxSeccomp) (*Filter, error) {
	b, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	if p.Flags == nil { // differs from an empty list, but JSON omits both
		b = append(b, '-')
	}
	key := sha256.Sum256(b)
	filters.Lock()
	f := filters.byHash[key]
	filters.Unlock()
	if f != nil {
		return f, nil
	}
	if f, err = compile(p, native); err != nil {
		return nil, err
	}
	filters.Lock()
	defer filters.Unlock()
	if filters.byHash == nil || len(filters.byHash) >= maxCached {
		filters.byHash = map[[sha256.Size]byte]*Filter{}
	}
	filters.byHash[key] = f
	return f, nil
}

// compile returns the filter for any processor.
func compile(p *specs.LinuxSeccomp, goarch string) (*Filter, error) {
	read, err := read(p, goarch)
	if err != nil {
		return nil, err
	}
	program := read.compile()
	raw, err := assemble(program)
	if err != nil {
		return nil, err
	}
	f := &Filter{Flags: read.flags}
	if f.vm, err = bpf.NewVM(program); err != nil {
		return nil, err
	}
	for _, i := range raw {
		if f.Program, err = binary.Append(f.Program, binary.NativeEndian, i); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// call is a system call as a filter sees it.
type call struct {
	number, arch uint32
	args         [6]uint64
}

// run returns the filter's action for a call. The interpreter reads big-endian numbers.
func (f *Filter) run(c call) (uint32, error) {
	b := binary.BigEndian.AppendUint32(nil, c.number)
	b = binary.BigEndian.AppendUint32(b, c.arch)
	b = append(b, make([]byte, 8)...) // the instruction pointer
	for _, a := range c.args {
		b = binary.BigEndian.AppendUint32(b, uint32(a))
		b = binary.BigEndian.AppendUint32(b, uint32(a>>32))
	}
	n, err := f.vm.Run(b)
	return uint32(n), err
}

// Allows reports whether the filter allows a call of this machine.
func (f *Filter) Allows(name string, args ...uint64) bool {
	table := tables[abis[native][0]]
	number, ok := table.numbers[name]
	if !ok {
		return false
	}
	c := call{number: number, arch: table.id}
	copy(c.args[:], args)
	a, err := f.run(c)
	return err == nil && (a == unix.SECCOMP_RET_ALLOW || a == unix.SECCOMP_RET_LOG)
}
