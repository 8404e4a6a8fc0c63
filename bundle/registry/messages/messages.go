// Package messages has kubectl's messages translated only in a process that is kubectl: to make
// ready for it takes 12 ms, which the judge of the local API would spend at each of its starts.
//
// Owns: whether the process is kubectl.
// Reads: its arguments.
// Never: anything but this.
//
// Messages are translated in variables of kubectl's packages, the first of which makes ready for
// it. Go initializes this package before these: of those whose imports are initialized, it takes
// the one whose path comes first.
package messages

import (
	"os"
	"path/filepath"

	"k8s.io/kubectl/pkg/util/i18n"
)

// kubectlName is the name by which the program is kubectl.
const kubectlName = "kubectl"

// Kubectl reports whether a program that is called so is to be kubectl: by its own name, or by its
// first argument. args are then kubectl's, as os.Args.
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
