package plan

import (
	"crypto/sha256"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"berth/bundle/podshim/wire"
)

// forms are what messages and plans are made of in each version: a sum of the declarations of
// podshim.h, without comments and spaces.
var forms = map[uint32]string{
	2: "e174de4ce039ef72fc94e037cb30ef5578eb880eda641aa0c527711bc2f13a7e",
}

// A pod shim lives as long as its pod, and containerd speaks the version of each: so no form
// changes without a new version, and the one before stays.
func TestTheFormOfTheVersion(t *testing.T) {
	b, err := os.ReadFile("../c/podshim.h")
	if err != nil {
		t.Fatal(err)
	}
	_, c, _ := strings.Cut(string(b), "// What goes over the socket")
	c, _, _ = strings.Cut(c, "// A stream is what")
	c = regexp.MustCompile(`//.*|enum \{ VERSION = \d+,|\s`).ReplaceAllString("//"+c, "")
	for _, want := range []string{"structrequest{uint32_tversion,op,seq", "structreply{", "CREATE=1", "FILES}", "structstep{", "structplan{", "JOIN=1", "OPS};"} {
		if !strings.Contains(c, want) {
			t.Fatalf("%q was not read from podshim.h: %s", want, c)
		}
	}
	if sum := fmt.Sprintf("%x", sha256.Sum256([]byte(c))); sum != forms[wire.Version] {
		t.Errorf("messages or plans of version %d are not as they were (%s). Where a pod shim of before would take the new form for another thing: raise wire.Version, have Encode, DecodeReply and Bytes "+
			"write and read both, and add the new sum", wire.Version, sum)
	}
}
