package read

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"

	"google.golang.org/protobuf/encoding/protowire"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/localapi/store"
)

// pageBytes is the size of a page of objects that is read from the store. The history never expires
// a list of one page.
const pageBytes = 4 << 20

type listing struct {
	req *request
	position
	sel selector
}

// page is a part of a list.
type page struct {
	objects  []object
	revision uint64
	last     store.Key // of the last object that was read
	more     bool      // there are objects after last
	rest     int64     // the number of these, if there is a limit and no selector
}

// read returns what follows the position: up to the limit, or one page.
func (l *listing) read() (page, error) {
	var p page
	size := 0
	var failure error
	revision, err := l.req.cfg.Store.List(l.span(), func(i store.Item) bool {
		if name := l.sel.name(); name != "" && l.oneNamespace() && i.Key.Name > name {
			return false
		}
		if p.more = l.isFull(len(p.objects), size); p.more {
			p.rest++
			return l.limit > 0 && l.sel.all() // only count
		}
		p.last = i.Key
		o, err := parse(l.req.kind, i)
		ok := false
		if err == nil {
			ok, err = l.sel.matches(o)
		}
		if err != nil {
			if failure = l.req.skip(err); failure != nil {
				failure = apierrors.NewInternalError(failure)
			}
			return failure == nil
		}
		if ok {
			o.raw = bytes.Clone(o.raw) // the store's is valid only during the call
			p.objects = append(p.objects, o)
			size += len(o.raw)
		}
		return true
	})
	p.revision = revision
	if err == nil {
		err = failure
	}
	return p, err
}

func (l *listing) isFull(objects, size int) bool {
	if l.limit > 0 {
		return int64(objects) >= l.limit
	}
	return size >= pageBytes
}

// oneNamespace reports whether the objects' names are unique.
func (l *listing) oneNamespace() bool { return !l.req.kind.Namespaced || l.req.Namespace != "" }

// span returns the range of the store to read.
func (l *listing) span() store.Range {
	r := store.Range{Resource: l.req.kind.Stored, After: l.after, Revision: l.revision}
	if l.req.kind.Namespaced {
		r.Namespace = l.req.Namespace
	}
	// For an exact name, start at it: after the name without its last character.
	if name := l.sel.name(); name != "" && l.after == (store.Key{}) && l.oneNamespace() {
		r.After = store.Key{Resource: l.req.kind.Stored, Namespace: r.Namespace, Name: name[:len(name)-1]}
	}
	return r
}

// each calls show with the objects of a page and of all following ones.
func (l *listing) each(p page, show func(object) error) error {
	at := *l
	at.revision = p.revision
	for {
		for _, o := range p.objects {
			if err := l.req.skip(show(o)); err != nil {
				return err
			}
		}
		if l.limit > 0 || !p.more {
			return nil
		}
		at.after = p.last
		var err error
		if p, err = at.read(); err != nil {
			return err
		}
	}
}

func (q *request) list(o *internalversion.ListOptions, sel selector) {
	position, err := q.positionOf(o)
	if err == nil {
		err = q.view.check(q, list)
	}
	if err != nil {
		q.fail(err)
		return
	}
	l := &listing{q, position, sel}
	first, err := l.read()
	if err != nil {
		q.fail(l.explain(err, o.Continue))
		return
	}
	meta, err := l.meta(first)
	if err != nil {
		q.fail(apierrors.NewInternalError(err))
		return
	}
	b := q.body()
	if q.media.isProtobuf() {
		err = l.protobuf(b, first, meta)
	} else {
		err = l.json(b, first, meta)
	}
	switch {
	case err == nil:
		q.finish(b)
	case b.out == nil:
		q.fail(l.explain(err, ""))
	case b.err == nil: // the client is connected, and sees an incomplete response
		q.cfg.Log.Warn("a list broke off, its client lists again", "path", q.Path, "error", err)
	}
}

// explain converts an error of the store to an API error.
func (l *listing) explain(err error, continued string) error {
	var known apierrors.APIStatus
	switch {
	case errors.As(err, &known), errors.As(err, &disconnected{}):
		return err
	case errors.Is(err, store.ErrFuture):
		return tooLarge(l.revision, l.req.cfg.Store.Revision())
	case errors.Is(err, store.ErrCompacted) && continued != "":
		return l.expired()
	case errors.Is(err, store.ErrCompacted):
		return apierrors.NewResourceExpired("The resourceVersion for the provided list is too old.")
	}
	return apierrors.NewInternalError(err)
}

// expired returns the error for a continue token whose revision has expired, with a token to
// continue inconsistently.
func (l *listing) expired() error {
	next, err := l.req.tokenAfter(l.after, newest)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	expired := apierrors.NewResourceExpired("The provided continue parameter is too old to display a consistent list result. " +
		"You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. " +
		"Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time " +
		"the first chunk was returned and now may show up in the list.")
	expired.ErrStatus.ListMeta.Continue = next
	return expired
}

func (l *listing) meta(p page) (metav1.ListMeta, error) {
	m := metav1.ListMeta{ResourceVersion: object{revision: p.revision}.version()}
	if l.limit == 0 || !p.more {
		return m, nil
	}
	if l.sel.all() {
		m.RemainingItemCount = &p.rest
	}
	var err error
	m.Continue, err = l.req.tokenAfter(p.last, int64(min(p.revision, math.MaxInt64)))
	return m, err
}

// header is the JSON of a list up to its items.
type header struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
}

// json writes a list as JSON, from which other formats are converted.
func (l *listing) json(b *body, first page, meta metav1.ListMeta) error {
	kind := l.req.view.kinds(l.req.kind).list
	apiVersion, name := kind.ToAPIVersionAndKind()
	text, err := json.Marshal(header{metav1.TypeMeta{Kind: name, APIVersion: apiVersion}, meta})
	if err != nil {
		return err
	}
	b.write(text[:len(text)-1])
	begin := `,"items":[`
	if t, ok := l.req.view.(*table); ok {
		if begin, err = t.begin(); err != nil {
			return err
		}
	}
	b.write([]byte(begin))
	comma := ""
	err = l.each(first, func(o object) error {
		item, err := l.req.view.item(o)
		if err == nil {
			text, err = json.Marshal(item)
		}
		if err != nil {
			return err
		}
		b.write([]byte(comma))
		b.write(text)
		comma = ","
		return b.err
	})
	if err == nil {
		b.write([]byte("]}\n"))
	}
	return err
}

// Field numbers of a list in protobuf.
const (
	listMeta  protowire.Number = 1
	listItems protowire.Number = 2
)

// protobuf writes a list as protobuf. It starts with its size, so a list of several pages is read
// twice.
func (l *listing) protobuf(b *body, first page, meta metav1.ListMeta) error {
	head, err := meta.Marshal()
	if err != nil {
		return err
	}
	begin := replaced(nil, span{}, listMeta, head)
	size := len(begin)
	err = l.each(first, func(o object) error {
		message, err := l.req.view.message(o)
		if err != nil {
			return err
		}
		size += protowire.SizeTag(listItems) + protowire.SizeBytes(len(message))
		return nil
	})
	if err != nil {
		return err
	}
	before, after, err := around(l, size)
	if err != nil {
		return err
	}
	b.write(before)
	b.write(begin)
	var tag []byte
	err = l.each(first, func(o object) error {
		message, err := l.req.view.message(o)
		if err != nil {
			return err
		}
		tag = protowire.AppendTag(tag[:0], listItems, protowire.BytesType)
		tag = protowire.AppendVarint(tag, uint64(len(message)))
		b.write(tag)
		b.write(message)
		return b.err
	})
	if err == nil {
		b.write(after)
	}
	return err
}

// around returns the bytes before and after a list of the given size.
func around(l *listing, size int) (before, after []byte, err error) {
	empty, err := unknown(l.req.view.kinds(l.req.kind).list, []byte{})
	if err != nil {
		return nil, nil, err
	}
	_, at, err := find(empty[len(prefix):], unknownRaw)
	if err != nil {
		return nil, nil, err
	}
	before = append(before, empty[:len(prefix)+at.from]...)
	before = protowire.AppendTag(before, unknownRaw, protowire.BytesType)
	before = protowire.AppendVarint(before, uint64(size))
	return before, empty[len(prefix)+at.to:], nil
}
