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

// forms are checksums of the declarations of messages and plans in podshim.h in each version,
// without comments and spaces.
var forms = map[uint32]string{
	2: "f3512db2f6fa0a562e7c659d08d883c11f09b06111ca8cf095156ba5e93df8f3",
}

// A pod shim runs as long as its pod, and containerd uses its version: a format must not change
// without a new version, and the previous version must stay supported.
func TestTheFormOfTheVersion(t *testing.T) {
	b, err := os.ReadFile("../c/podshim.h")
	if err != nil {
		t.Fatal(err)
	}
	_, c, _ := strings.Cut(string(b), "// The protocol")
	c, _, _ = strings.Cut(c, "// An output stream")
	c = regexp.MustCompile(`//.*|enum \{ VERSION = \d+,|\s`).ReplaceAllString("//"+c, "")
	for _, want := range []string{"structrequest{uint32_tversion,op,seq", "structreply{", "OP_CREATE=1", "FD_COUNT}", "structstep{", "structplan{", "STEP_JOIN=1", "STEP_COUNT};"} {
		if !strings.Contains(c, want) {
			t.Fatalf("%q was not read from podshim.h: %s", want, c)
		}
	}
	if sum := fmt.Sprintf("%x", sha256.Sum256([]byte(c))); sum != forms[wire.Version] {
		t.Errorf("messages or plans of version %d are not as they were (%s). Where a pod shim of before would take the new form for another thing: raise wire.Version, have Encode, DecodeReply and Bytes "+
			"write and read both, and add the new sum", wire.Version, sum)
	}
}
