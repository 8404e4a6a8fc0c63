package podconfig

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"berth/internal/pod"
	"berth/internal/source/manifest"
)

// programPath is the path of problems with objects of the program.
const programPath = "program"

// ProgramObject is a pod or a local object of the embedding program, with its apiVersion and kind.
type ProgramObject interface {
	metav1.Object
	runtime.Object
}

// programSource provides pods and local objects of the embedding program. Each is treated like a
// manifest of its own: it is defaulted, validated and compared with its last version.
type programSource struct {
	program func(ctx context.Context, set func([]ProgramObject) error) error
	decode  func(from manifest.Origin, content []byte) manifest.Decoded

	mu   sync.Mutex               // the program may call set from several goroutines
	last map[string]programObject // guarded by mu; of the last set, by kind, namespace and name
}

// programObject is the decoded form of an object of the program.
type programObject struct {
	content []byte // as JSON
	manifest.Decoded
}

func newProgramSource(cfg Config) *programSource {
	d := manifest.Decoder{Node: cfg.NodeName, Names: cfg.Names}
	return &programSource{program: cfg.Program, decode: d.Decode, last: map[string]programObject{}}
}

func (s *programSource) run(ctx context.Context, handOver func(snapshot)) error {
	err := s.program(ctx, func(objects []ProgramObject) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := s.decodeSet(objects)
		handOver(n)
		return err
	})
	if err != nil {
		return err
	}
	<-ctx.Done() // its last set stays in effect
	return ctx.Err()
}

// decodeSet decodes the complete set; the error lists rejected objects. The caller holds the lock.
func (s *programSource) decodeSet(objects []ProgramObject) (snapshot, error) {
	var out snapshot
	next := make(map[string]programObject, len(objects))
	for _, o := range objects {
		key := fmt.Sprintf("%s %s/%s", o.GetObjectKind().GroupVersionKind().Kind, cmp.Or(o.GetNamespace(), v1.NamespaceDefault), o.GetName())
		if _, ok := next[key]; ok {
			out.problems = append(out.problems, programProblem(o, "is there twice: the first one counts"))
			continue
		}
		next[key] = s.decodeObject(o, s.last[key])
		out.add(next[key].Decoded)
	}
	s.last = next
	var errs []error
	for _, p := range out.problems {
		if p.Severity == manifest.SeverityError {
			errs = append(errs, fmt.Errorf("%s/%s: %s", p.Namespace, p.Name, p.Message))
		}
	}
	return out, errors.Join(errs...)
}

// decodeObject decodes an object; before is its version in the last set, or zero.
func (s *programSource) decodeObject(o ProgramObject, before programObject) programObject {
	content, err := json.Marshal(o)
	if err != nil {
		return programObject{Decoded: orLastGood(before.Objects, manifest.Decoded{Problems: []manifest.Problem{programProblem(o, err.Error())}})}
	}
	if bytes.Equal(content, before.content) {
		return before // the same pointers: nothing has to be compared
	}
	now := s.decode(manifest.Origin{Source: pod.ProgramSource, Path: programPath}, content)
	return programObject{content, orLastGood(before.Objects, now)}
}

// programProblem is the problem of a rejected object of the program.
func programProblem(o ProgramObject, message string) manifest.Problem {
	return manifest.Problem{
		Source: pod.ProgramSource, Path: programPath, Severity: manifest.SeverityError, Namespace: cmp.Or(o.GetNamespace(), v1.NamespaceDefault), Name: o.GetName(), Message: message,
	}
}
