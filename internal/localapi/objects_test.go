package localapi

import (
	"path/filepath"
	"testing"

	nodev1 "k8s.io/api/node/v1"

	"berth/internal/localapi/kinds"
	"berth/internal/localapi/store"
)

// Each handler of the runtime has a RuntimeClass, which is created once.
func TestRuntimeClasses(t *testing.T) {
	s, err := store.Open(store.Config{Path: filepath.Join(t.TempDir(), "objects.db"), NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var revision uint64
	for range 2 {
		if err := createInitial(s, append(initialObjects(), runtimeClasses([]string{"runc", "other"})...)); err != nil {
			t.Fatal(err)
		}
		if revision != 0 && s.Revision() != revision {
			t.Error("objects are created again")
		}
		revision = s.Revision()
	}
	for _, name := range []string{"runc", "other"} {
		item, err := s.Get(store.Key{Resource: "runtimeclasses.node.k8s.io", Name: name})
		if err != nil {
			t.Fatal(err)
		}
		o, err := kinds.Decode(item.Value, item.Revision)
		if err != nil {
			t.Fatal(err)
		}
		if c := o.(*nodev1.RuntimeClass); c.Handler != name || c.UID == "" || c.CreationTimestamp.IsZero() {
			t.Errorf("class = %+v", c)
		}
	}
}
