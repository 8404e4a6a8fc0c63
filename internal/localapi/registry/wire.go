package registry

import (
	"errors"
	"io"
	"sync"

	"berth/internal/localapi/store"
)

// The descriptors that the child is started with.
const (
	ListenerDescriptor = 3
	StoreDescriptor    = 4
)

// serviceName begins the names of the calls.
const serviceName = "Store"

// What one answer has at most. Its first element is there whatever its size, so that an answer is
// bounded by that and by store.MaxValue.
const (
	maxAnswerItems = 500
	maxAnswerBytes = 1 << 20
)

// WriteCall changes one object, as store.Write does.
type WriteCall struct {
	Key   store.Key
	Seen  uint64
	Value []byte // nil removes
}

// WatchCall begins a watch of a resource, in a namespace or, if that is empty, in all.
type WatchCall struct {
	Resource  string
	Namespace string
	After     uint64 // the revision after which changes are wanted
}

// ItemAnswer is an object.
type ItemAnswer struct {
	Item    store.Item
	Failure Failure
}

// PageAnswer is a part of a list.
type PageAnswer struct {
	Page    Page
	Failure Failure
}

// Page is a part of a list. All of them show one revision if those after the first ask for it.
type Page struct {
	Items    []store.Item
	Revision uint64
	More     bool // there are objects after the last
}

// NumberAnswer is a revision, a number of objects, or what names a watch.
type NumberAnswer struct {
	Number  uint64
	Failure Failure
}

// ChangesAnswer is the next changes of a watch, in their order.
type ChangesAnswer struct {
	Changes []store.Change
	Failure Failure
}

// Nothing is asked, or answered.
type Nothing struct{ Failure Failure }

// Failure is an error on its way over the socket. The zero value is none.
type Failure struct {
	Class int // an index of classes
	Text  string
}

// classes are the errors that the other side tells apart.
var classes = []error{
	nil, errOther,
	store.ErrNotFound, store.ErrConflict, store.ErrCompacted, store.ErrFuture, store.ErrTooLarge, store.ErrFull, errNoWatch,
}

var (
	errOther     = errors.New("the store failed")
	errNoWatch   = errors.New("the watch has ended")
	errBusyWatch = errors.New("the watch has a waiting client already")
)

func failureOf(err error) Failure {
	if err == nil {
		return Failure{}
	}
	for class, known := range classes[2:] {
		if errors.Is(err, known) {
			return Failure{Class: class + 2, Text: err.Error()}
		}
	}
	return Failure{Class: 1, Text: err.Error()}
}

// err is the error again: its text, and errors.Is for those of package store.
func (f Failure) err() error {
	if f == (Failure{}) {
		return nil
	}
	class := errOther
	if f.Class > 0 && f.Class < len(classes) {
		class = classes[f.Class]
	}
	return &remoteError{text: f.Text, class: class}
}

type remoteError struct {
	text  string
	class error
}

func (e *remoteError) Error() string { return e.text }
func (e *remoteError) Unwrap() error { return e.class }

// ending is a connection that says when the other side is gone. net/rpc tells that only to calls
// that are under way, and on the serving side after all of them are answered.
type ending struct {
	io.ReadWriteCloser
	once sync.Once
	gone func()
}

func (e *ending) Read(p []byte) (int, error) {
	n, err := e.ReadWriteCloser.Read(p)
	if err != nil {
		e.once.Do(e.gone)
	}
	return n, err
}
