package shims

import (
	"errors"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"berth/bundle/podshim/plan"
)

// A label that the host does not heed is refused, by its name.
func TestLabelsOfAHostWithout(t *testing.T) {
	none, all := modules{}, modules{appArmor: true, seLinux: true}
	for field, c := range map[string]struct {
		process    specs.Process
		mountLabel string
	}{
		"process.apparmorProfile": {process: specs.Process{ApparmorProfile: "x"}},
		"process.selinuxLabel":    {process: specs.Process{SelinuxLabel: "x"}},
		"linux.mountLabel":        {mountLabel: "x"},
	} {
		var r *plan.Refused
		if err := none.refuse(&c.process, c.mountLabel); !errors.As(err, &r) || r.Field != field || !strings.Contains(r.Why, `"x"`) {
			t.Errorf("%s: %v", field, err)
		}
		if err := all.refuse(&c.process, c.mountLabel); err != nil {
			t.Errorf("%s: %v on a host that has it", field, err)
		}
	}
	if err := none.refuse(&specs.Process{}, ""); err != nil {
		t.Errorf("without labels: %v", err)
	}
}

// The options of /dev/shm are what the pod shim is told, with a label if the pod has one.
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
