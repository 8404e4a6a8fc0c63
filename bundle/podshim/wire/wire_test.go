package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
)

func raw(t *testing.T, v any) []byte {
	t.Helper()
	b, err := binary.Append(nil, binary.NativeEndian, v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func id(s string) (out [IDLength]byte) {
	copy(out[:], s)
	return out
}

func TestRequest(t *testing.T) {
	full := strings.Repeat("f", IDLength)
	for _, name := range []string{"", "one", full} {
		b, err := Request{Op: Kill, Seq: 7, Arg: 15, FDMask: 5, ID: name, Exec: "e" + name[:min(len(name), IDLength-1)]}.Encode(Version)
		if want := raw(t, rawRequest{Version, 3, 7, 15, 5, id(name), id("e" + name[:min(len(name), IDLength-1)])}); err != nil || string(b) != string(want) {
			t.Errorf("%q: %x, %v, want %x", name, b, err, want)
		}
	}
	for _, name := range []string{full + "f", "a\x00b"} {
		for _, r := range []Request{{ID: name}, {Exec: name}} {
			if _, err := r.Encode(Version); err == nil || !strings.Contains(err.Error(), "id") {
				t.Errorf("%+v: error %v, want one that names the id", r, err)
			}
		}
	}
}

func TestReply(t *testing.T) {
	got, err := DecodeReply(raw(t, rawReply{Version, 101, 2, 13, -3, 4, 3, 6, 7, 8, id("one"), id("two")}), Version)
	want := Reply{Op: Listed, Seq: 2, Err: syscall.EACCES, Step: ReasonExec, Pid: 4, State: Stopped, Status: 6, Started: 7, Exited: 8, ID: "one", Exec: "two"}
	if err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	if got, err := DecodeReply(raw(t, rawReply{Version: Version, Op: 1, ID: id(strings.Repeat("f", IDLength))}), Version); err != nil || len(got.ID) != IDLength {
		t.Errorf("%+v, %v, want an id of full length", got, err)
	}
	good := raw(t, rawReply{Version: Version, Op: 1})
	for name, b := range map[string][]byte{
		"too short":         good[:11],
		"create has 100":    good[:100],
		"create has 177":    append(good, 0),
		"zero inside":       raw(t, rawReply{Version: Version, ID: id("a\x00b")}),
		`id "a\x00b`:        raw(t, rawReply{Version: Version, Exec: id("a\x00b")}),
		"that there is not": raw(t, rawReply{Version: Version, State: 4}),
	} {
		if _, err := DecodeReply(b, Version); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("error %v, want %q in it", err, name)
		}
	}
}

// A message of another version is reported as such, whatever its size, and whether that version is
// supported.
func TestReplyOfAnotherVersion(t *testing.T) {
	for _, v := range []uint32{Oldest - 1, Oldest, Version, Version + 1} {
		for _, b := range [][]byte{raw(t, prefix{v, 1, 77}), append(raw(t, rawReply{Version: v, Seq: 77}), 1, 2, 3)} {
			_, err := DecodeReply(b, Version+2)
			var other *VersionError
			if !errors.As(err, &other) || other.Shim != v || other.Seq != 77 || !strings.Contains(err.Error(), fmt.Sprintf("version %d of", v)) {
				t.Errorf("error %v, want one of version %d, for request 77", err, v)
			} else if want := v == Oldest || v == Version; other.Supported() != want {
				t.Errorf("version %d is known: %t", v, !want)
			}
		}
	}
}

func FuzzDecodeReply(f *testing.F) {
	f.Add([]byte(nil))
	f.Add(make([]byte, ReplySize))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := DecodeReply(b, Version); err == nil && (len(b) != ReplySize || len(r.ID) > IDLength || len(r.Exec) > IDLength || r.State > Stopped) {
			t.Errorf("%x: %+v", b, r)
		}
	})
}

func TestOpNames(t *testing.T) {
	for op, want := range map[Op]string{
		Create: "create", Start: "start", Kill: "kill", Delete: "delete", List: "list", Stop: "stop", Exited: "exited", Listed: "listed",
		Execute: "exec", Resize: "resize", CloseStdin: "close stdin", 10: "op 10",
	} {
		if op.String() != want {
			t.Errorf("%q, want %q", op, want)
		}
	}
}
