package localapi

import (
	"errors"
	"os"
	"strings"
	"testing"

	"berth/internal/localapi/store"
)

// A damaged file of objects is recovered from its copy, and reported as long as the damaged file is
// kept. One that is damaged while it is in use ends Run; Open then recovers it.
func TestDamagedObjects(t *testing.T) {
	rootDir, runDir := folders(t)
	s := openAPI(t, rootDir, runDir)
	write(t, s, "before")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	damage := func() {
		fi, err := os.Stat(objectsFile(rootDir))
		if err == nil {
			err = os.Truncate(objectsFile(rootDir), fi.Size()/3)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	damage()
	s = openAPI(t, rootDir, runDir)
	r, now := s.store.Recovery()
	if !now || len(r.Lost) > 0 || !has(s, "before") {
		t.Fatalf("recovery %v", r)
	}
	if err := s.Health(); err == nil || !strings.Contains(err.Error(), r.Aside) || !strings.Contains(err.Error(), "none is lost") {
		t.Errorf("health: %v", err)
	}
	if err := os.Remove(r.Aside); err != nil {
		t.Fatal(err)
	}
	if err := s.Health(); err != nil {
		t.Errorf("health without the damaged file: %v", err)
	}
	ended := make(chan error)
	go func() { ended <- s.Run(t.Context()) }()
	damage()
	_, err := s.store.List(store.Range{Resource: "namespaces"}, func(store.Item) bool { return true })
	for err == nil {
		_, err = s.store.Write(store.Key{Resource: "pods", Namespace: "default", Name: "more"}, 0, []byte("pod"))
		if errors.Is(err, store.ErrConflict) {
			_, err = s.store.List(store.Range{Resource: "pods"}, func(store.Item) bool { return true })
		}
	}
	if err := <-ended; !errors.Is(err, ErrDamaged) {
		t.Errorf("Run ends with %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openAPI(t, rootDir, runDir)
	if !has(s, "before") {
		t.Error("the object is lost")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
