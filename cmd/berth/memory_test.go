package main

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapFile maps a new file of so many pages, each of which begins with its own number.
func mapFile(t *testing.T, pages int) []byte {
	t.Helper()
	size := os.Getpagesize()
	content := make([]byte, pages*size)
	for i := range pages {
		content[i*size] = byte(i)
	}
	f, err := os.Create(filepath.Join(t.TempDir(), "program"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(content); err != nil {
		t.Fatal(err)
	}
	mapped, err := unix.Mmap(int(f.Fd()), 0, len(content), unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(mapped); err != nil {
			t.Error(err)
		}
	})
	return mapped
}

// resident returns how many pages of the mapping are in the process (proc_pid_pagemap(5)).
func resident(t *testing.T, m mapping) (pages int) {
	t.Helper()
	f, err := os.Open("/proc/self/pagemap")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	size := uintptr(os.Getpagesize())
	entries := make([]byte, 8*(m.to-m.from)/size)
	if _, err := f.ReadAt(entries, int64(8*m.from/size)); err != nil {
		t.Fatal(err)
	}
	for ; len(entries) > 0; entries = entries[8:] {
		if binary.NativeEndian.Uint64(entries)>>63 == 1 {
			pages++
		}
	}
	return pages
}

func TestMapPagesAlone(t *testing.T) {
	const pages = 64
	file := mapFile(t, pages)
	size := os.Getpagesize()
	from := uintptr(unsafe.Pointer(&file[0]))
	m := mapping{from, from + uintptr(len(file))}
	fd, err := mapPagesAlone([]mapping{m})
	wantAlone := err == nil
	if err != nil {
		t.Logf("this kernel cannot, and maps as it always did: %v", err)
	} else {
		defer unix.Close(fd)
	}
	for i, page := range []int{20, 40, 41} {
		if got := file[page*size]; int(got) != page {
			t.Fatalf("page %d begins with %d", page, got)
		}
		if got := resident(t, m); wantAlone && got != i+1 {
			t.Errorf("%d pages are mapped after %d were read", got, i+1)
		}
	}
	unmap([]mapping{m})
	if got := resident(t, m); got != 0 {
		t.Errorf("%d pages are mapped after they were taken out", got)
	}
	if got := file[40*size]; got != 40 {
		t.Errorf("a page that is back begins with %d", got)
	}
}

// What is no mapping is refused, and nothing stays open.
func TestMapPagesAloneRefused(t *testing.T) {
	fd, err := mapPagesAlone([]mapping{{1, 2}})
	if err == nil || fd != -1 {
		t.Errorf("memory at 1 to 2: descriptor %d, error %v", fd, err)
	}
}

func TestProgramMappings(t *testing.T) {
	code := reflect.ValueOf(TestProgramMappings).Pointer()
	for _, m := range programMappings() {
		if m.from <= code && code < m.to {
			return
		}
	}
	t.Errorf("the code of this test, at %#x, is in none of %x", code, programMappings())
}

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
		m, ok := parseProgramMapping(line, exe)
		if ok != want {
			t.Errorf("%q: is the program's: %t, want %t", line, ok, want)
		}
		if ok && (m.from == 0 || m.from >= m.to) {
			t.Errorf("%q: from %#x to %#x", line, m.from, m.to)
		}
	}
}
