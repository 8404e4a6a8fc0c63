package userns

// Range is the host's ids that stand for the ids from 0 on of a pod's user namespace, of users and
// groups alike.
type Range struct {
	First  uint32
	Length uint32
}

// end is the first id after the range; it does not always fit into an id.
func (r Range) end() uint64 { return uint64(r.First) + uint64(r.Length) }
