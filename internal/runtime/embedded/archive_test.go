package embedded

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/klauspost/compress/zstd"
)

// tarOf returns an archive of files, given as name and content by turns.
func tarOf(t *testing.T, files ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := 0; i < len(files); i += 2 {
		if err := w.WriteHeader(&tar.Header{Name: files[i], Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(files[i+1]))}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, files[i+1]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func config(platform string) string {
	system, arch, _ := strings.Cut(platform, "/")
	return fmt.Sprintf(`{"os":%q,"architecture":%q}`, system, arch)
}

// dockerArchive returns an archive of docker's old form, with an index at its end as docker has it.
func dockerArchive(t *testing.T, platforms ...string) []byte {
	t.Helper()
	var files, images []string
	for i, p := range platforms {
		files = append(files, fmt.Sprintf("%d.json", i), config(p), fmt.Sprintf("%d/layer.tar", i), strings.Repeat("layer", 20000))
		images = append(images, fmt.Sprintf(`{"Config":"%d.json","RepoTags":["app:%d"],"Layers":["%d/layer.tar"]}`, i, i, i))
	}
	return tarOf(t, append(files, "manifest.json", "["+strings.Join(images, ",")+"]")...)
}

// ociArchive returns an OCI layout of one image, an index of a manifest for each platform. That of
// a missing one is in the index alone.
func ociArchive(t *testing.T, platforms ...string) []byte {
	t.Helper()
	files := []string{"oci-layout", `{"imageLayoutVersion":"1.0.0"}`}
	var manifests []string
	for i, p := range platforms {
		p, missing := strings.CutSuffix(p, " missing")
		p, stated := strings.CutSuffix(p, " stated")
		platform := ""
		if missing || stated {
			platform = `,"platform":` + config(p)
		}
		manifests = append(manifests, fmt.Sprintf(`{"digest":"sha256:m%d"%s}`, i, platform))
		if !missing {
			files = append(files, fmt.Sprintf("blobs/sha256/m%d", i), fmt.Sprintf(`{"config":{"digest":"sha256:c%d"}}`, i), fmt.Sprintf("blobs/sha256/c%d", i), config(p))
		}
	}
	files = append(files, "blobs/sha256/index", `{"manifests":[`+strings.Join(manifests, ",")+`]}`,
		"index.json", `{"manifests":[{"digest":"sha256:index","annotations":{"io.containerd.image.name":"r.example/app:1"}}]}`)
	return tarOf(t, files...)
}

func compressed(t *testing.T, by string, content []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	var w io.WriteCloser = gzip.NewWriter(&b)
	if by == "zstd" {
		var err error
		if w, err = zstd.NewWriter(&b); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestArchive(t *testing.T) {
	ours, theirs := "linux/"+runtime.GOARCH, "linux/s390x"
	mine := dockerArchive(t, ours)
	refused := "is for linux/s390x, and this node is " + ours + " (import an archive that has it for " + ours + ")"
	tests := map[string]struct {
		file []byte
		want string // the error, or a part of it
	}{
		"docker":                            {mine, ""},
		"gzip":                              {compressed(t, "gzip", mine), ""},
		"zstd":                              {compressed(t, "zstd", mine), ""},
		"docker, foreign":                   {dockerArchive(t, theirs), "image app:0 " + refused},
		"docker, foreign and compressed":    {compressed(t, "gzip", dockerArchive(t, theirs)), "image app:0 " + refused},
		"docker, one of two foreign":        {dockerArchive(t, ours, theirs), "image app:1 " + refused},
		"docker, no platform":               {tarOf(t, "c.json", "{}", "manifest.json", `[{"Config":"c.json"}]`), ""},
		"OCI":                               {ociArchive(t, ours), ""},
		"OCI, foreign":                      {ociArchive(t, theirs), "image r.example/app:1 " + refused},
		"OCI, foreign by its descriptor":    {ociArchive(t, theirs+" stated"), "image r.example/app:1 " + refused},
		"OCI, two foreign":                  {ociArchive(t, theirs, "windows/amd64 stated"), "is for linux/s390x and windows/amd64, and"},
		"OCI, one of the platforms is ours": {ociArchive(t, theirs+" missing", ours), ""},
		"OCI, attestation":                  {ociArchive(t, "unknown/unknown stated", theirs), "image r.example/app:1 " + refused},
		"OCI, only an attestation":          {ociArchive(t, "unknown/unknown stated"), ""},
		"OCI layout without an index":       {tarOf(t, "oci-layout", "{}", "manifest.json", "[]"), "the tar archive has no image"},
		"damaged index":                     {tarOf(t, "manifest.json", "[{"), "manifest.json is not valid"},
		"docker export":                     {tarOf(t, "etc/passwd", "root"), `neither manifest.json nor oci-layout with index.json is in it (make one by "docker save", not "docker export")`},
		"empty":                             {nil, "the file is empty"},
		"text":                              {[]byte("hello\n"), "it is no tar archive"},
		"long text":                         {bytes.Repeat([]byte("hello\n"), 5000), "it is no tar archive"},
		"zeros":                             {make([]byte, 5000), "it is no tar archive"},
		"lz4":                               {[]byte("\x04\x22\x4d\x18xxxx"), "compressed by lz4, which is not supported (decompress it: lz4 -dc FILE | berth image import -)"},
		"xz":                                {[]byte("\xfd7zXZ\x00xxxx"), "compressed by xz"},
		"bzip2":                             {[]byte("BZh9xxxx"), "compressed by bzip2"},
		"zip":                               {[]byte("PK\x03\x04xxxx"), "compressed by zip"},
		"compressed text":                   {compressed(t, "gzip", []byte("hello")), "it is no tar archive"},
		"truncated":                         {mine[:len(mine)/2], "the archive is truncated"},
		"truncated gzip":                    {compressed(t, "gzip", mine)[:400], "unexpected EOF"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			for how, from := range map[string]io.Reader{"at once": bytes.NewReader(tt.file), "in bytes": iotest.OneByteReader(bytes.NewReader(tt.file))} {
				var got []byte
				a, err := openArchive(from)
				if err == nil {
					got, err = io.ReadAll(a)
					a.close()
				}
				switch {
				case tt.want == "" && err != nil, tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
					t.Errorf("%s: %v, want %q", how, err, tt.want)
				case tt.want == "" && name != "gzip" && name != "zstd" && !bytes.Equal(got, tt.file):
					t.Errorf("%s: %d bytes are not the file's %d", how, len(got), len(tt.file))
				}
				if strings.Contains(tt.want, "is for") {
					wantNoEnd(t, got)
				}
			}
		})
	}
}

// wantNoEnd checks that a receiver of what was handed out cannot take it for a whole archive.
func wantNoEnd(t *testing.T, got []byte) {
	t.Helper()
	r := tar.NewReader(bytes.NewReader(got))
	for {
		h, err := r.Next()
		if err == io.EOF && len(got) > 0 { //nolint:errorlint // as package tar has it
			t.Errorf("%d bytes were handed out, and are a whole archive", len(got))
		}
		if err != nil {
			return
		}
		if h.Name == "manifest.json" || h.Name == "index.json" {
			if b, err := io.ReadAll(r); err == nil {
				t.Errorf("the index %s was handed out", b)
			}
		}
	}
}

// A foreign image with much behind its index is handed out up to the index, and no further.
func TestArchiveIsCheckedBeforeItsEnd(t *testing.T) {
	file := append(dockerArchive(t, "linux/s390x"), make([]byte, 10*archiveBuffer)...)
	a, err := openArchive(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	defer a.close()
	got, err := io.ReadAll(a)
	if err == nil {
		t.Fatal("a foreign image was handed out")
	}
	wantNoEnd(t, got)
}

func TestArchiveClosedEarly(t *testing.T) {
	a, err := openArchive(bytes.NewReader(dockerArchive(t, "linux/"+runtime.GOARCH)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Read(make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	a.close()
	if err := <-a.checked; err == nil {
		t.Error("the check of half an archive succeeded")
	}
}
