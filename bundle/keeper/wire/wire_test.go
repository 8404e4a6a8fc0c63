package wire

import (
	"encoding/binary"
	"errors"
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
		b, err := Request{Op: Kill, Seq: 7, Arg: 15, ID: name}.Encode()
		if want := raw(t, rawRequest{1, 3, 7, 15, id(name)}); err != nil || string(b) != string(want) {
			t.Errorf("%q: %x, %v, want %x", name, b, err, want)
		}
	}
	for _, name := range []string{full + "f", "a\x00b"} {
		if _, err := (Request{ID: name}).Encode(); err == nil || !strings.Contains(err.Error(), "id") {
			t.Errorf("%q: error %v, want one that names the id", name, err)
		}
	}
}

func TestReply(t *testing.T) {
	got, err := DecodeReply(raw(t, rawReply{1, 101, 2, 13, -3, 4, 3, 6, 7, 8, id("one")}))
	want := Reply{Op: Listed, Seq: 2, Err: syscall.EACCES, Step: Exec, Pid: 4, State: Stopped, Status: 6, Started: 7, Exited: 8, ID: "one"}
	if err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	if got, err := DecodeReply(raw(t, rawReply{Version: 1, Op: 1, ID: id(strings.Repeat("f", IDLength))})); err != nil || len(got.ID) != IDLength {
		t.Errorf("%+v, %v, want an id of full length", got, err)
	}
	good := raw(t, rawReply{Version: 1, Op: 1})
	for name, b := range map[string][]byte{
		"too short":         good[:11],
		"create has 100":    good[:100],
		"create has 113":    append(good, 0),
		"zero inside":       raw(t, rawReply{Version: 1, ID: id("a\x00b")}),
		"that there is not": raw(t, rawReply{Version: 1, State: 4}),
	} {
		if _, err := DecodeReply(b); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("error %v, want %q in it", err, name)
		}
	}
}

// A message of another version is told as that, whatever its size.
func TestReplyOfAnotherVersion(t *testing.T) {
	for _, b := range [][]byte{raw(t, prefix{2, 1, 77}), append(raw(t, rawReply{Version: 2, Seq: 77}), 1, 2, 3)} {
		_, err := DecodeReply(b)
		var v *VersionError
		if !errors.As(err, &v) || v.Theirs != 2 || v.Seq != 77 || !strings.Contains(err.Error(), "version 2") {
			t.Errorf("error %v, want one of version 2, for request 77", err)
		}
	}
}

func FuzzDecodeReply(f *testing.F) {
	f.Add([]byte(nil))
	f.Add(make([]byte, ReplySize))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := DecodeReply(b); err == nil && (len(b) != ReplySize || len(r.ID) > IDLength || r.State > Stopped) {
			t.Errorf("%x: %+v", b, r)
		}
	})
}

func TestOpNames(t *testing.T) {
	for op, want := range map[Op]string{Create: "create", Start: "start", Kill: "kill", Delete: "delete", List: "list", Stop: "stop", Exited: "exited", Listed: "listed", 9: "op 9"} {
		if op.String() != want {
			t.Errorf("%q, want %q", op, want)
		}
	}
}
