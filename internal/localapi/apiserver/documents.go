package apiserver

import (
	"archive/zip"
	"bytes"
	"compress/flate"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth/internal/localapi/loopback"
)

// Documents are the program's documents (discovery, OpenAPI, version) in a file, so that discovery
// requests start no child.
//
// The file is a zip archive. Its member documentsIndex lists the requests and the headers of each
// document; the other members are the documents.
type Documents struct {
	all   map[string][]document
	files map[string]*zip.File
	io.Closer
}

// document is the response to one request.
type document struct {
	Path string `json:"path"`
	// Accept is the media type of the request, with parameters.
	Accept string `json:"accept"`
	// Header is the header of the response. Last-Modified is the time of the file.
	Header http.Header `json:"header"`
	// Compressed is set if it is sent with gzip to clients that accept it.
	Compressed bool `json:"compressed,omitempty"`
	// File is the member with the body.
	File string `json:"file"`
}

const documentsIndex = "index.json"

// documentTypes are the media types of requests, the default first.
var documentTypes = []string{
	"application/json",
	"application/yaml",
	"application/vnd.kubernetes.protobuf",
	"application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
	"application/vnd.kubernetes.protobuf;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
	"application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
	"application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
	"application/com.github.proto-openapi.spec.v3.v1.0+protobuf",
	"application/com.github.proto-openapi.spec.v3@v1.0+protobuf",
}

// OpenDocuments opens a file that KeepDocuments has written. Close must not be called before all
// responses are complete.
func OpenDocuments(path string) (*Documents, error) {
	d, err := openDocuments(path)
	if err != nil {
		return nil, fmt.Errorf("documents of the local API, %s: %w; have the program apiserver write it again, by `apiserver documents FILE`", path, err)
	}
	return d, nil
}

func openDocuments(path string) (_ *Documents, err error) {
	z, err := zip.OpenReader(path)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, z.Close())
		}
	}()
	return readDocuments(&z.Reader, z)
}

// ReadDocuments is OpenDocuments for the content of a file.
func ReadDocuments(content io.ReaderAt, size int64) (*Documents, error) {
	z, err := zip.NewReader(content, size)
	if err != nil {
		return nil, fmt.Errorf("documents of the local API: %w", err)
	}
	return readDocuments(z, io.NopCloser(nil))
}

func readDocuments(z *zip.Reader, closer io.Closer) (*Documents, error) {
	d := &Documents{all: map[string][]document{}, files: map[string]*zip.File{}, Closer: closer}
	for _, f := range z.File {
		d.files[f.Name] = f
	}
	index, err := z.Open(documentsIndex)
	if err != nil {
		return nil, err
	}
	var list []document
	if err := errors.Join(json.NewDecoder(index).Decode(&list), index.Close()); err != nil {
		return nil, fmt.Errorf("%s: %w", documentsIndex, err)
	}
	for _, doc := range list {
		if f := d.files[doc.File]; f == nil || f.Method != zip.Deflate {
			return nil, fmt.Errorf("%s: it has no compressed member %q, for %s", documentsIndex, doc.File, doc.Path)
		}
		d.all[doc.Path] = append(d.all[doc.Path], doc)
	}
	return d, nil
}

// keeper writes documents.
type keeper struct {
	client http.Client
	to     *zip.Writer
	made   time.Time
	files  map[string]string // body: name
	index  []document
}

// KeepDocuments requests all documents of an API, and writes them. made is their modification time.
func KeepDocuments(ctx context.Context, api http.Handler, made time.Time, to io.Writer) error {
	k := &keeper{client: http.Client{Transport: loopback.Transport{Handler: api}}, to: zip.NewWriter(to), made: made.UTC(), files: map[string]string{}}
	k.to.RegisterCompressor(zip.Deflate, func(w io.Writer) (io.WriteCloser, error) { return flate.NewWriter(w, flate.BestCompression) })
	paths, err := k.documentPaths(ctx)
	for _, path := range paths {
		if err == nil {
			err = k.keep(ctx, path)
		}
	}
	if err == nil {
		var index []byte
		if index, err = json.MarshalIndent(k.index, "", "\t"); err == nil {
			err = k.write(documentsIndex, index)
		}
	}
	return errors.Join(err, k.to.Close())
}

// openAPI3 is the path of the list of OpenAPI v3 documents, which are below it.
const openAPI3 = "/openapi/v3"

func (k *keeper) documentPaths(ctx context.Context) ([]string, error) {
	var listed struct{ Paths []string }
	var below struct{ Paths map[string]any } // of OpenAPI
	for path, into := range map[string]any{"/": &listed, openAPI3: &below} {
		answer, err := k.ask(ctx, path, documentTypes[0], "")
		if err == nil {
			err = json.Unmarshal(answer.body, into)
		}
		if err != nil {
			return nil, fmt.Errorf("documents at %s: %w", path, err)
		}
	}
	var paths []string
	for _, path := range listed.Paths {
		switch root, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/"); root {
		case "api", "apis", "openapi", "version":
			paths = append(paths, strings.TrimSuffix(path, "/"))
		}
	}
	for path := range below.Paths {
		paths = append(paths, openAPI3+"/"+path)
	}
	slices.Sort(paths)
	return slices.Compact(paths), nil
}

// keep writes the documents of a path, one for each supported media type.
func (k *keeper) keep(ctx context.Context, path string) error {
	kept := len(k.index)
	for _, accept := range documentTypes {
		plain, err := k.ask(ctx, path, accept, "")
		if err != nil {
			return err
		}
		if plain.code == http.StatusNotAcceptable {
			continue
		}
		compressed, err := k.ask(ctx, path, accept, gzipped)
		if err != nil {
			return err
		}
		if plain.code != http.StatusOK || compressed.code != http.StatusOK {
			return fmt.Errorf("%s is answered %d, and %d where it may be compressed", path, plain.code, compressed.code)
		}
		file, ok := k.files[string(plain.body)]
		if !ok {
			file = strconv.Itoa(len(k.files))
			k.files[string(plain.body)] = file
			if err := k.write(file, plain.body); err != nil {
				return err
			}
		}
		for _, name := range []string{"Date", "Expires", "Content-Length", "Audit-Id"} {
			plain.header.Del(name)
		}
		if plain.header.Get("Last-Modified") != "" {
			plain.header.Set("Last-Modified", k.made.Format(http.TimeFormat))
		}
		k.index = append(k.index, document{path, accept, plain.header, compressed.header.Get("Content-Encoding") == gzipped, file})
	}
	if len(k.index) == kept {
		return fmt.Errorf("%s has no document", path)
	}
	return nil
}

type documentAnswer struct {
	code   int
	header http.Header
	body   []byte
}

func (k *keeper) ask(ctx context.Context, path, accept, encoding string) (documentAnswer, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://apiserver"+path, http.NoBody)
	if err != nil {
		return documentAnswer{}, err
	}
	r.Header.Set("Accept", accept)
	r.Header.Set("Accept-Encoding", encoding)
	r.RequestURI = path
	identify(r.Header, Identity{Name: "apiserver", Groups: []string{"system:masters"}})
	response, err := k.client.Transport.RoundTrip(r)
	if err != nil {
		return documentAnswer{}, err
	}
	var body bytes.Buffer
	_, err = body.ReadFrom(response.Body)
	return documentAnswer{response.StatusCode, response.Header, body.Bytes()}, errors.Join(err, response.Body.Close())
}

func (k *keeper) write(name string, body []byte) error {
	w, err := k.to.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Deflate, Modified: k.made})
	if err != nil {
		return err
	}
	_, err = w.Write(body)
	return err
}
