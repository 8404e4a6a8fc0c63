package apiserver

import (
	"errors"
	"io"
	"sync"

	"berth/internal/localapi/store"
)

// The file descriptors of the child.
const (
	ListenerDescriptor = 3
	StoreDescriptor    = 4
)

// serviceName is the net/rpc service name.
const serviceName = "Store"

// Limits of a response. Its first element is sent whatever its size, which store.MaxValue bounds.
const (
	maxAnswerItems = 500
	maxAnswerBytes = 1 << 20
)

// WriteCall changes one object, as store.Write does.
type WriteCall struct {
	Key   store.Key
	Seen  uint64
	Value []byte // nil removes the object
}

// WatchCall starts a watch of a resource, in a namespace or, if that is empty, in all.
type WatchCall struct {
	Resource  string
	Namespace string
	After     uint64 // watch changes after this revision
}

// ItemAnswer is the response of Get.
type ItemAnswer struct {
	Item    store.Item
	Failure Failure
}

// PageAnswer is the response of List.
type PageAnswer struct {
	Page    Page
	Failure Failure
}

// Page is a page of a list. To get a consistent list, request the later pages at the revision of
// the first.
type Page struct {
	Items    []store.Item
	Revision uint64
	More     bool // there are objects after the last
}

// NumberAnswer is a revision, a number of objects, or the ID of a watch.
type NumberAnswer struct {
	Number  uint64
	Failure Failure
}

// ChangesAnswer is the next changes of a watch, in order.
type ChangesAnswer struct {
	Changes []store.Change
	Failure Failure
}

// Nothing is an empty request or response.
type Nothing struct{ Failure Failure }

// Failure is an error in a response. The zero value is no error.
type Failure struct {
	Class int // an index of classes
	Text  string
}

// classes are the errors that the client can distinguish.
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

// err returns the error with its text, for which errors.Is matches the classes.
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

// ending is a connection that reports when the other end is closed. net/rpc reports that only to
// calls in progress, and on the server after all of them have returned.
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
