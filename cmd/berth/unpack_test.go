package main

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// member is one of an archive.
type member struct {
	kind          byte
	name, content string // of a link, where it leads
}

func archiveOf(t testing.TB, members ...member) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, m := range members {
		h := &tar.Header{Typeflag: m.kind, Name: m.name, Mode: 0o755}
		if m.kind == tar.TypeReg {
			h.Size = int64(len(m.content))
		} else {
			h.Linkname = m.content
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if m.kind == tar.TypeReg {
			if _, err := io.WriteString(w, m.content); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

const (
	file = tar.TypeReg
	dir  = tar.TypeDir
	link = tar.TypeSymlink
	hard = tar.TypeLink
)

// What a container that is up to no good may send: CVE-2019-1002101, CVE-2019-11246,
// CVE-2019-11249, CVE-2019-11251 were of this kind.
func TestUnpackWritesNowhereElse(t *testing.T) {
	for name, c := range map[string]struct {
		members []member
		want    map[string]string // below the destination
		said    string
		err     string
	}{
		"up by name":            {members: []member{{dir, "d", ""}, {file, "d/../../out", "X"}}, want: map[string]string{}, err: `"d/../../out", which is not part of "d": refused`},
		"up from the beginning": {members: []member{{file, "../out", "X"}}, want: map[string]string{}, err: "refused"},
		"absolute":              {members: []member{{dir, "d", ""}, {file, "/out", "X"}}, want: map[string]string{}, err: "refused"},
		"another name":          {members: []member{{dir, "d", ""}, {file, "dd", "X"}}, want: map[string]string{}, err: "refused"},
		"through a link":        {members: []member{{dir, "d", ""}, {link, "d/l", ".."}, {file, "d/l/out", "X"}}, want: map[string]string{"l/out": "X"}, said: `symlink: "d/l" -> ".."`},
		"through an absolute link": {
			members: []member{{dir, "d", ""}, {link, "d/l", "/"}, {file, "d/l/out", "X"}},
			want:    map[string]string{"l/out": "X"}, said: `symlink: "d/l" -> "/"`,
		},
		"over a link": {members: []member{{dir, "d", ""}, {file, "d/f", "F"}, {link, "d/l", "f"}, {file, "d/l", "X"}}, want: map[string]string{"f": "F", "l": "X"}},
		"two links":   {members: []member{{dir, "d/p/q/r", ""}, {link, "d/p/q/r/s", "../../../t"}, {link, "d/e", "p/q/r/s/../../out"}}, want: map[string]string{"p/q/r/s": "-> ../../../t"}, said: "d/e"},
		"link below a link": {
			members: []member{{dir, "d/p/q/r", ""}, {dir, "d/t", ""}, {link, "d/p/q/r/s", "../../../t"}, {link, "d/p/q/r/s/l", "../../../../out"}},
			want:    map[string]string{"p/q/r/s": "-> ../../../t", "t": "/"}, said: "d/p/q/r/s/l",
		},
		"hard link out":        {members: []member{{dir, "d", ""}, {hard, "d/l", "../out"}}, want: map[string]string{}, said: `link: "d/l" to "../out"`},
		"hard link to a link":  {members: []member{{dir, "d/p", ""}, {link, "d/p/l", "../x"}, {hard, "d/l", "d/p/l"}}, want: map[string]string{"p/l": "-> ../x"}, said: `which is no file`},
		"hard link to nothing": {members: []member{{dir, "d", ""}, {hard, "d/l", "d/x"}}, want: map[string]string{}, said: `which is no file`},
		"hard link":            {members: []member{{dir, "d", ""}, {file, "d/f", "F"}, {hard, "d/l", "d/f"}}, want: map[string]string{"f": "F", "l": "F"}},
		"device":               {members: []member{{dir, "d", ""}, {tar.TypeBlock, "d/sda", ""}, {tar.TypeFifo, "d/pipe", ""}}, want: map[string]string{}, said: `special file: "d/sda"`},
		"folder over a link":   {members: []member{{dir, "d/t", ""}, {link, "d/l", "t"}, {dir, "d/l", ""}, {file, "d/l/f", "F"}}, want: map[string]string{"t/f": "F", "l": "-> t"}},
		"links up and down":    {members: []member{{dir, "d/p", ""}, {link, "d/p/l", "../q/./r"}}, want: map[string]string{"p/l": "-> ../q/./r"}},
	} {
		t.Run(name, func(t *testing.T) {
			around := t.TempDir()
			to := filepath.Join(around, "a/b/to")
			var said bytes.Buffer
			err := unpack(bytes.NewReader(archiveOf(t, c.members...)), "d", to, &said)
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) || (said.Len() == 0) != (c.said == "") || !strings.Contains(said.String(), c.said) {
				t.Errorf("got %v, and said %q; want %q and %q", err, said.String(), c.err, c.said)
			}
			if _, err := os.Lstat(to); err == nil || len(c.want) > 0 {
				if diff := cmp.Diff(c.want, found(t, to)); diff != "" {
					t.Error(diff)
				}
			}
			if err := os.RemoveAll(to); err != nil {
				t.Fatal(err)
			}
			if rest := found(t, around); len(rest) > 1 || rest["a/b"] != "/" && len(rest) > 0 {
				t.Errorf("outside is %v", rest)
			}
		})
	}
}

// The user's own links below the destination are not followed out of it either.
func TestUnpackBehindAnOldLink(t *testing.T) {
	around := t.TempDir()
	fill(t, around, map[string]string{"to/l": "-> ../outside", "outside": "/"})
	err := unpack(bytes.NewReader(archiveOf(t, member{dir, "d", ""}, member{file, "d/l/f", "X"})), "d", filepath.Join(around, "to"), io.Discard)
	if err == nil {
		t.Error("written behind the link")
	}
	if diff := cmp.Diff(map[string]string{"to/l": "-> ../outside", "outside": "/"}, found(t, around)); diff != "" {
		t.Error(diff)
	}
}

func FuzzUnpack(f *testing.F) {
	f.Add(archiveOf(f, member{dir, "d", ""}, member{file, "d/f", "F"}, member{link, "d/l", "f"}, member{hard, "d/h", "d/f"}))
	f.Add(archiveOf(f, member{dir, "d/p/q", ""}, member{link, "d/p/q/l", "../../r"}, member{link, "d/x", "p/q/l/../.."}, member{file, "d/x/out", "X"}))
	f.Add(archiveOf(f, member{file, "d", "F"}))
	f.Add(archiveOf(f, member{file, "d/../../out", "F"}))
	f.Add([]byte("d\x00/../.."))
	f.Fuzz(func(t *testing.T, archive []byte) {
		around := t.TempDir()
		fill(t, around, map[string]string{"a/secret": "S"})
		to := filepath.Join(around, "a", "to")
		if err := os.Mkdir(to, 0o755); err != nil {
			t.Fatal(err)
		}
		_ = unpack(bytes.NewReader(archive), "d", to, io.Discard) // most archives are broken
		// No link leads out, and nothing else is there.
		root, err := os.OpenRoot(to)
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		for name, content := range found(t, to) {
			if _, ok := strings.CutPrefix(content, "-> "); !ok {
				continue
			}
			if _, err := root.Stat(name); err != nil && strings.Contains(err.Error(), "path escapes from parent") {
				t.Errorf("%s %s leads out", name, content)
			}
		}
		if err := os.RemoveAll(to); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(map[string]string{"a/secret": "S"}, found(t, around)); diff != "" {
			t.Error(diff)
		}
	})
}
