package server

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
)

// encodedFor is how long the JSON of a response is cached. Monitoring scrapes every 10 to 30 s.
const encodedFor = time.Minute

type podLists struct {
	pods, running podEncoder
}

// podEncoder writes lists of pods. It caches the JSON of each pod of the last list, because
// monitoring polls often and most pods do not change in between.
type podEncoder struct {
	mu      sync.Mutex
	encoded map[pod.UID]encodedPod // guarded by mu; only of the last list
	forget  *time.Timer            // guarded by mu; nil before the first list
}

type encodedPod struct {
	pod  *v1.Pod
	json []byte
}

// listBuffers buffer lists that are written: the server's buffer has 4 KiB, and each flush is a
// system call.
var listBuffers = sync.Pool{New: func() any { return bufio.NewWriterSize(nil, 64<<10) }}

// write writes a v1.PodList. The pods must not be modified afterwards. A slow client does not block
// others.
func (e *podEncoder) write(w io.Writer, pods []*v1.Pod) error {
	items, err := e.encode(pods)
	if err != nil {
		return err
	}
	b := listBuffers.Get().(*bufio.Writer)
	b.Reset(w)
	defer func() {
		b.Reset(nil) // without the client
		listBuffers.Put(b)
	}()
	_, _ = b.WriteString(`{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[`)
	for i, item := range items {
		if i > 0 {
			_ = b.WriteByte(',')
		}
		_, _ = b.Write(item)
	}
	_, _ = b.WriteString("]}\n")
	return b.Flush() // returns the first error
}

func (e *podEncoder) encode(pods []*v1.Pod) ([][]byte, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := make(map[pod.UID]encodedPod, len(pods))
	items := make([][]byte, 0, len(pods))
	for _, p := range pods {
		// An unchanged pod is nearly always the same object; if not, unchanged parts are shared
		// with the previous object, and the comparison skips them.
		known := e.encoded[p.UID]
		if known.pod == nil || known.pod != p && !reflect.DeepEqual(known.pod, p) {
			b, err := json.Marshal(p)
			if err != nil {
				return nil, fmt.Errorf("encode pod %s/%s: %w", p.Namespace, p.Name, err)
			}
			known = encodedPod{p, b}
		}
		now[p.UID] = known
		items = append(items, known.json)
	}
	e.encoded = now
	if e.forget == nil {
		e.forget = time.AfterFunc(encodedFor, e.drop)
	} else {
		e.forget.Reset(encodedFor)
	}
	return items, nil
}

func (e *podEncoder) drop() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.encoded = nil
}
