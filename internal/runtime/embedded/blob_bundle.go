//go:build bundle

package embedded

import (
	_ "embed"
	"io"
	"strings"
)

const hasBlob = true

// blob is a string so that reading it does not copy: a page becomes resident when it is read, which
// only the unpacking child does.
//
//go:embed bundle/bundle.tar.zst
var blob string

// apiBlob is the archive of the local API's programs.
//
//go:embed bundle/api.tar.zst
var apiBlob string

// apiDocuments are the documents that describe the programs of the local API.
//
//go:embed bundle/api.documents
var apiDocuments string

func embeddedBlob() io.Reader { return strings.NewReader(blob) }

func embeddedAPI() io.Reader { return strings.NewReader(apiBlob) }
