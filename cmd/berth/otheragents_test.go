package main

import (
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"testing"
)

// An agent is found by its socket, if that is one that can be reached by its path.
func TestFindRunDirs(t *testing.T) {
	run := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(run, "berth.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	line := func(flags, path string) string {
		return fmt.Sprintf("ffff8f0a0a0a0a00: 00000002 00000000 %s 0001 01 4711 %s\n", flags, path)
	}
	const listens = "00010000"
	table := "Num       RefCount Protocol Flags    Type St Inode Path\n" +
		line(listens, run+"/berth.sock") + line(listens, run+"/berth.sock") +
		line("00000000", run+"/berth.sock") + // a connection
		line(listens, run+"/containerd.sock") + line(listens, "@/x/berth.sock") + line(listens, "berth.sock") +
		line(listens, run+"/of-a-container/berth.sock") +
		"ffff8f0a0a0a0a00: 00000002 00000000 00010000 0001 01 4711\n"
	if got := findRunDirs(table); !slices.Equal(got, []string{run}) {
		t.Errorf("got %q, want %q", got, run)
	}
}
