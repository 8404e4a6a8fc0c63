package agenttest

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"berth/agent"
	"berth/internal/localapi/kinds"
	"berth/internal/localapi/store"
	"berth/internal/pod"
)

// openLocalAPI restarts the agent with a local API that contains the objects of files.
func (s *story) openLocalAPI(files []string) error {
	s.StopAgent()
	s.LocalAPI = &agent.LocalAPI{}
	s.StartAgent() // it creates the store file
	s.Settle(time.Minute)
	s.StopAgent()
	db, err := store.Open(store.Config{Path: filepath.Join(s.Root(), "api", "objects.db"), Copy: true})
	if err != nil {
		return err
	}
	for _, f := range files {
		err = errors.Join(err, storeObject(db, s.files[f]))
		s.Settle(time.Second - FileQuiet) // for distinct ages
	}
	if err := errors.Join(err, db.Close()); err != nil {
		return err
	}
	s.StartAgent()
	return nil
}

// storeObject creates or replaces an object as a client does.
func storeObject(db *store.Store, text []byte) error {
	var kind metav1.TypeMeta
	if err := yaml.Unmarshal(text, &kind); err != nil {
		return err
	}
	var o kinds.Object
	switch kind.Kind {
	case "Pod":
		o = &v1.Pod{}
	case "PersistentVolumeClaim":
		o = &v1.PersistentVolumeClaim{}
	case "Node":
		return changeNode(db, text)
	default:
		return fmt.Errorf("the local API is not given a %q", kind.Kind)
	}
	if err := yaml.UnmarshalStrict(text, o); err != nil {
		return err
	}
	if p, ok := o.(*v1.Pod); ok {
		p.Generation, p.Status.Phase = 1, v1.PodPending
	}
	o.SetNamespace(v1.NamespaceDefault)
	o.SetUID(pod.UID("00000000-0000-4000-8000-" + fmt.Sprintf("%012x", time.Now().Unix()%(1<<32))))
	o.SetCreationTimestamp(metav1.Now())
	return write(db, o, 0)
}

// changeNode copies taints and unschedulable from another Node to the machine's.
func changeNode(db *store.Store, text []byte) error {
	var like v1.Node
	if err := yaml.UnmarshalStrict(text, &like); err != nil {
		return err
	}
	item, err := db.Get(store.Key{Resource: "nodes", Name: NodeName})
	if err != nil {
		return err
	}
	o, err := kinds.Decode(item.Value, item.Revision)
	if err != nil {
		return err
	}
	n := o.(*v1.Node)
	n.Spec.Taints, n.Spec.Unschedulable = like.Spec.Taints, like.Spec.Unschedulable
	return write(db, n, item.Revision)
}

// write stores an object that was read at a revision, 0 for a new one.
func write(db *store.Store, o kinds.Object, seen uint64) error {
	value, err := kinds.Encode(o)
	if err != nil {
		return err
	}
	_, err = db.Write(store.Key{Resource: kinds.Of(o).Stored, Namespace: o.GetNamespace(), Name: o.GetName()}, seen, value)
	return err
}
