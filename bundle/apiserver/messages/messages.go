// Package messages loads kubectl's translations only in a process that is kubectl: loading takes
// 12 ms, which the API writer would spend at each start.
//
// Owns: whether the process is kubectl.
// Reads: its arguments.
// Never: anything but this.
//
// Variables of kubectl's packages translate messages, and the first of them loads the translations.
// Go initializes this package before them: of the packages whose imports are initialized, it takes
// the one whose path sorts first.
package messages

import (
	"os"
	"path/filepath"

	"k8s.io/kubectl/pkg/util/i18n"
)

// kubectlName is the name of the program as kubectl.
const kubectlName = "kubectl"

// Kubectl reports whether a program with these arguments is kubectl, by its name or its first
// argument. args are then kubectl's, as os.Args.
func Kubectl(argv []string) (args []string, ok bool) {
	switch {
	case len(argv) > 0 && filepath.Base(argv[0]) == kubectlName:
		return argv, true
	case len(argv) > 1 && argv[1] == kubectlName:
		return argv[1:], true
	}
	return nil, false
}

func init() {
	if _, ok := Kubectl(os.Args); ok {
		return
	}
	if err := i18n.SetLoadTranslationsFunc(func() error { return nil }); err != nil {
		panic("another package has had messages translated before: " + err.Error()) // does not depend on input
	}
}
