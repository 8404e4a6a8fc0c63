package cgroupstat

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// parseNumber parses a file with one number. "max" and numbers beyond any memory size are
// Unlimited; -1, which means no quota, is 0.
func parseNumber(b []byte) (uint64, error) {
	s := string(bytes.TrimSpace(b))
	switch s {
	case "max":
		return Unlimited, nil
	case "-1":
		return 0, nil
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is not a number", s)
	}
	if n >= unlimitedFrom {
		return Unlimited, nil
	}
	return n, nil
}

// parseFlat calls f for each line "key value"; it skips other lines, because new kernels add lines
// to these files.
func parseFlat(b []byte, f func(key string, value uint64)) {
	for line := range bytes.Lines(b) {
		key, value, ok := strings.Cut(strings.TrimSpace(string(line)), " ")
		if n, err := strconv.ParseUint(value, 10, 64); ok && err == nil {
			f(key, n)
		}
	}
}

// parseCPUMax parses cpu.max: "100000 100000", or "max 100000" without a quota.
func parseCPUMax(b []byte) (quota, period uint64, err error) {
	q, p, ok := strings.Cut(strings.TrimSpace(string(b)), " ")
	if !ok {
		return 0, 0, fmt.Errorf("cpu.max %q: want a quota and a period", b)
	}
	if quota, err = parseNumber([]byte(q)); err != nil {
		return 0, 0, fmt.Errorf("cpu.max: quota: %w", err)
	}
	if quota == Unlimited {
		quota = 0
	}
	if period, err = parseNumber([]byte(p)); err != nil {
		return 0, 0, fmt.Errorf("cpu.max: period: %w", err)
	}
	return quota, period, nil
}

// sharesFromWeight is the inverse of the conversion of KEP-2254.
func sharesFromWeight(weight uint64) uint64 {
	if weight == 0 {
		return 0
	}
	return 2 + (min(weight, 10000)-1)*262142/9999
}

// parsePressure parses a pressure file: a line "some avg10=0.00 avg60=0.00 avg300=0.00 total=0" and
// one for full, which old kernels lack for the CPU.
func parsePressure(b []byte) (*Stall, error) {
	var s Stall
	seen := false
	for line := range bytes.Lines(b) {
		words := strings.Fields(string(line))
		if len(words) == 0 {
			continue
		}
		var into *Stalled
		switch words[0] {
		case "some":
			into, seen = &s.Some, true
		case "full":
			into = &s.Full
		default:
			continue
		}
		for _, w := range words[1:] {
			key, value, _ := strings.Cut(w, "=")
			var err error
			switch key {
			case "avg10":
				into.Avg10, err = strconv.ParseFloat(value, 64)
			case "avg60":
				into.Avg60, err = strconv.ParseFloat(value, 64)
			case "avg300":
				into.Avg300, err = strconv.ParseFloat(value, 64)
			case "total":
				into.Total, err = strconv.ParseUint(value, 10, 64)
			}
			if err != nil {
				return nil, fmt.Errorf("pressure: %s: %w", words[0], err)
			}
		}
	}
	if !seen {
		return nil, fmt.Errorf("pressure %q: no line for some", b)
	}
	return &s, nil
}

// parseIOStat parses io.stat of version 2: "254:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0".
func parseIOStat(b []byte) []DeviceIO {
	var out []DeviceIO
	for line := range bytes.Lines(b) {
		words := strings.Fields(string(line))
		if len(words) == 0 {
			continue
		}
		d := DeviceIO{}
		var ok bool
		if d.Major, d.Minor, ok = parseDevice(words[0]); !ok {
			continue
		}
		for _, w := range words[1:] {
			key, value, _ := strings.Cut(w, "=")
			n, err := strconv.ParseUint(value, 10, 64)
			if err != nil {
				continue
			}
			if strings.HasPrefix(key, "cost.") && d.Cost == nil {
				d.Cost = &IOCost{}
			}
			switch key {
			case "rbytes":
				d.ReadBytes = n
			case "wbytes":
				d.WriteBytes = n
			case "rios":
				d.Reads = n
			case "wios":
				d.Writes = n
			case "cost.usage":
				d.Cost.Usage = n
			case "cost.wait":
				d.Cost.Wait = n
			case "cost.indebt":
				d.Cost.Debt = n
			case "cost.indelay":
				d.Cost.Delay = n
			}
		}
		out = append(out, d)
	}
	return out
}

// parseBlkio parses blkio.throttle.io_service_bytes_recursive and io_serviced_recursive of version
// 1, with lines "254:0 Read 4096".
func parseBlkio(bytesFile, countFile []byte) []DeviceIO {
	var out []DeviceIO
	read := func(b []byte, set func(d *DeviceIO, op string, n uint64)) {
		for line := range bytes.Lines(b) {
			words := strings.Fields(string(line))
			if len(words) != 3 {
				continue // "Total 4096"
			}
			major, minor, ok := parseDevice(words[0])
			n, err := strconv.ParseUint(words[2], 10, 64)
			if !ok || err != nil {
				continue
			}
			i := slices.IndexFunc(out, func(d DeviceIO) bool { return d.Major == major && d.Minor == minor })
			if i < 0 {
				i, out = len(out), append(out, DeviceIO{Major: major, Minor: minor})
			}
			set(&out[i], words[1], n)
		}
	}
	read(bytesFile, func(d *DeviceIO, op string, n uint64) {
		switch op {
		case "Read":
			d.ReadBytes = n
		case "Write":
			d.WriteBytes = n
		}
	})
	read(countFile, func(d *DeviceIO, op string, n uint64) {
		switch op {
		case "Read":
			d.Reads = n
		case "Write":
			d.Writes = n
		}
	})
	slices.SortFunc(out, func(a, b DeviceIO) int { return cmp.Or(cmp.Compare(a.Major, b.Major), cmp.Compare(a.Minor, b.Minor)) })
	return out
}

func parseDevice(s string) (major, minor uint32, ok bool) {
	a, b, found := strings.Cut(s, ":")
	x, err := strconv.ParseUint(a, 10, 32)
	y, err2 := strconv.ParseUint(b, 10, 32)
	return uint32(x), uint32(y), found && err == nil && err2 == nil
}
