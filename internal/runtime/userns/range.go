package userns

// Range is the range of host IDs to which the IDs from 0 on of a pod's user namespace are mapped,
// for users and groups alike.
type Range struct {
	First  uint32
	Length uint32
}

// end is the first ID after the range; it may exceed 32 bits.
func (r Range) end() uint64 { return uint64(r.First) + uint64(r.Length) }
