package main

import "testing"

func TestParseProgramMapping(t *testing.T) {
	const exe = "/opt/a b/berth (deleted)"
	for line, want := range map[string]bool{
		"00400000-01343000 r-xp 00000000 fe:00 247741                             /opt/a b/berth (deleted)": true,
		"01343000-03a58000 r--p 00f43000 fe:00 247741                             /opt/a b/berth (deleted)": true,
		"03a58000-03afc000 rw-p 03658000 fe:00 247741                             /opt/a b/berth (deleted)": false,
		"03a58000-03afc000 r--p 03658000 fe:00 247742                             /opt/a b/berth":           false,
		"03afc000-05b4a000 r--p 00000000 00:00 0 ":                                                          false,
		"7ffdd00b1000-7ffdd00d2000 rw-p 00000000 00:00 0                          [stack]":                  false,
		"": false,
	} {
		from, to, ok := parseProgramMapping(line, exe)
		if ok != want {
			t.Errorf("%q: is the program's: %t, want %t", line, ok, want)
		}
		if ok && (from == 0 || from >= to) {
			t.Errorf("%q: from %#x to %#x", line, from, to)
		}
	}
}
