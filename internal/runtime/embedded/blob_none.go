//go:build !bundle

package embedded

import (
	"io"
	"strings"
)

const hasBlob = false

const apiDocuments = ""

func embeddedBlob() io.Reader { return strings.NewReader("") }

func embeddedAPI() io.Reader { return strings.NewReader("") }
