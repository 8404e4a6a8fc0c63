//go:build !bundle

package embedded

import (
	"io"
	"strings"
)

// hasBlob tells builds apart.
const hasBlob = false

const apiDocuments = ""

func embeddedBlob() io.Reader { return strings.NewReader("") }

func embeddedAPI() io.Reader { return strings.NewReader("") }
