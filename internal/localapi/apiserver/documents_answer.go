package apiserver

import (
	"encoding/binary"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/munnerz/goautoneg"
)

// Answer serves a request for a document exactly as the child would. For any request whose response
// it cannot determine for certain, such as invalid or pretty-printed ones, it returns false and
// writes nothing: the child serves those.
func (d *Documents) Answer(w http.ResponseWriter, r *http.Request) bool {
	if r.Method != http.MethodGet || isConditional(r.Header) || isRead(r.UserAgent()) {
		return false
	}
	doc := choose(d.all[r.URL.Path], r.Header.Get("Accept"))
	if doc == nil {
		return false
	}
	tag := doc.Header.Get("Etag")
	fixed, ok := readDocumentQuery(r.URL, tag)
	known := r.Header.Values("If-None-Match")
	encoding, plain := encodingOf(doc, r.Header.Values("Accept-Encoding"))
	if !ok || !plain || len(known) > 1 || len(known) == 1 && strings.ContainsAny(known[0], "*,W") {
		return false
	}
	for name, values := range doc.Header {
		w.Header()[name] = slices.Clone(values)
	}
	if fixed { // the request has the document's hash, so the response never changes
		w.Header().Set("Cache-Control", "public, immutable")
		w.Header().Set("Expires", time.Now().AddDate(1, 0, 0).Format(time.RFC1123))
	}
	if tag != "" && len(known) == 1 && known[0] == tag {
		for _, name := range []string{"Accept-Ranges", "Content-Type", "Last-Modified"} {
			w.Header().Del(name)
		}
		w.WriteHeader(http.StatusNotModified)
		return true
	}
	d.send(w, doc, encoding)
	return true
}

// isConditional reports whether a request is for a range, or is conditional on a time or match.
func isConditional(h http.Header) bool {
	for _, name := range []string{"Range", "If-Range", "If-Match", "If-Modified-Since", "If-Unmodified-Since"} {
		if h.Get(name) != "" {
			return true
		}
	}
	return false
}

// isRead reports whether kube-apiserver indents JSON for a client.
func isRead(agent string) bool {
	return strings.HasPrefix(agent, "curl") || strings.HasPrefix(agent, "Wget") || strings.HasPrefix(agent, "Mozilla/5.0")
}

// choose returns the document that a client requests; nil if that is not certain.
func choose(documents []document, accept string) *document {
	if accept == "" {
		accept = "*/*"
	}
	for _, clause := range goautoneg.ParseAccept(accept) {
		if clause.Q <= 0 || strings.Contains(clause.Type+clause.SubType, "*") && clause.Type+clause.SubType != "**" {
			return nil
		}
		for i := range documents {
			have := goautoneg.ParseAccept(documents[i].Accept)[0]
			switch {
			case clause.Type != "*" && (clause.Type != have.Type || clause.SubType != have.SubType):
			case sameParams(clause.Params, have.Params):
				return &documents[i]
			case !onlyKnown(clause.Params):
				return nil
			}
		}
	}
	return nil
}

func sameParams(a, b map[string]string) bool {
	return len(a) == len(b) && a["as"] == b["as"] && a["g"] == b["g"] && a["v"] == b["v"]
}

// onlyKnown reports whether there are no parameters other than those of a conversion.
func onlyKnown(params map[string]string) bool {
	for name := range params {
		if name != "as" && name != "g" && name != "v" {
			return false
		}
	}
	return true
}

// readDocumentQuery reports whether the query is supported, and whether it has the document's hash.
func readDocumentQuery(u *url.URL, tag string) (fixed, ok bool) {
	for name, values := range u.Query() {
		switch {
		case len(values) != 1:
			return false, false
		case name == "timeout": // the client's own timeout
			if t, err := time.ParseDuration(values[0]); err != nil || t <= 0 {
				return false, false
			}
		case name == "hash" && strings.HasPrefix(u.Path, openAPI3+"/"):
			if strconv.Quote(values[0]) != tag {
				return false, false
			}
			fixed = true
		default:
			return false, false
		}
	}
	return fixed, true
}

// gzipped is the encoding of compressed documents; "" is the other one.
const gzipped = "gzip"

// encodingOf returns the encoding of a document for a client; ok is false if its header is not a
// plain list.
func encodingOf(doc *document, header []string) (encoding string, ok bool) {
	for _, taken := range strings.Split(strings.Join(header, ","), ",") {
		name, params, _ := strings.Cut(strings.TrimSpace(taken), ";")
		if name == "*" || params != "" {
			return "", false
		}
		if name == gzipped && doc.Compressed {
			encoding = gzipped
		}
	}
	return encoding, true
}

// send writes a document. A zip member is the raw data of a gzip stream without header and trailer
// (RFC 1952), so it is sent compressed without conversion.
func (d *Documents) send(w http.ResponseWriter, doc *document, encoding string) {
	f := d.files[doc.File]
	open := f.Open
	if encoding == gzipped {
		open = func() (io.ReadCloser, error) {
			raw, err := f.OpenRaw()
			return io.NopCloser(raw), err
		}
	}
	body, err := open()
	if err != nil {
		w.Header().Del("Etag")
		refuse(w, http.StatusInternalServerError, "InternalError", err)
		return
	}
	defer func() { _ = body.Close() }()
	if encoding != gzipped {
		w.Header().Set("Content-Length", strconv.FormatUint(f.UncompressedSize64, 10))
		_, _ = io.Copy(w, body) // a failed write means that the client has disconnected
		return
	}
	head := []byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255}
	end := binary.LittleEndian.AppendUint32(nil, f.CRC32)
	end = binary.LittleEndian.AppendUint32(end, uint32(f.UncompressedSize64))
	w.Header().Set("Content-Encoding", gzipped)
	w.Header().Set("Content-Length", strconv.FormatUint(f.CompressedSize64+uint64(len(head)+len(end)), 10))
	_, _ = w.Write(head)
	_, _ = io.Copy(w, body)
	_, _ = w.Write(end)
}
