//go:build bundle

package embedded

import (
	_ "embed"
	"io"
	"strings"
)

// hasBlob tells builds apart.
const hasBlob = true

// blob is a string so that reading it copies nothing: a page of it becomes resident when it is
// read, which only the unpacking child does.
//
//go:embed bundle/bundle.tar.zst
var blob string

// apiBlob is the archive of the local API's programs.
//
//go:embed bundle/api.tar.zst
var apiBlob string

// apiDocuments are what the programs of the local API say of themselves.
//
//go:embed bundle/api.documents
var apiDocuments string

func embeddedBlob() io.Reader { return strings.NewReader(blob) }

func embeddedAPI() io.Reader { return strings.NewReader(apiBlob) }
