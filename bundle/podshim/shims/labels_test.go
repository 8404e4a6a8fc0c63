package shims

import (
	"errors"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"berth/bundle/podshim/plan"
)

// A label that the host does not enforce is rejected with its field.
func TestLabelsThatTheHostDoesNotEnforce(t *testing.T) {
	none, all := modules{}, modules{appArmor: true, seLinux: true}
	for field, c := range map[string]struct {
		process    specs.Process
		mountLabel string
	}{
		"process.apparmorProfile": {process: specs.Process{ApparmorProfile: "x"}},
		"process.selinuxLabel":    {process: specs.Process{SelinuxLabel: "x"}},
		"linux.mountLabel":        {mountLabel: "x"},
	} {
		var r *plan.FieldError
		if err := none.validate(&c.process, c.mountLabel); !errors.As(err, &r) || r.Field != field || !strings.Contains(r.Reason, `"x"`) {
			t.Errorf("%s: %v", field, err)
		}
		if err := all.validate(&c.process, c.mountLabel); err != nil {
			t.Errorf("%s: %v on a host that has it", field, err)
		}
	}
	if err := none.validate(&specs.Process{}, ""); err != nil {
		t.Errorf("without labels: %v", err)
	}
}

// The mount options of /dev/shm have a label if the pod has one.
func TestShmOptions(t *testing.T) {
	p := newPod(t.TempDir())
	if got := p.shmOptions(); got != "mode=1777,size=65536k" {
		t.Errorf("without a label: %s", got)
	}
	p.mountLabel = "u:r:t:s0:c1,c2"
	if got := p.shmOptions(); got != `mode=1777,size=65536k,context="u:r:t:s0:c1,c2"` {
		t.Errorf("with a label: %s", got)
	}
}
