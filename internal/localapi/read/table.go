package read

import (
	"encoding/json"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"berth/internal/localapi/kinds"
	"berth/internal/localapi/store"
)

// table is the view of objects as rows.
type table struct {
	columns     []metav1.TableColumnDefinition
	row         func(stored kinds.Object, now time.Time) metav1.TableRow
	include     metav1.IncludeObjectPolicy
	sentColumns bool // the columns were sent; a watch sends them once
	// readPulls reads the pulls in progress; nil: there is no reader. pulls is its last result.
	readPulls func() func(*v1.Pod) string
	pulls     func(*v1.Pod) string
}

// tableOf returns the table of the requested kind, nil if it is not supported.
func (q *request) tableOf() *table {
	switch q.kind.Stored {
	case "pods":
		t := &table{columns: podColumns, row: rowOf(podRow)}
		if pulls := q.cfg.Pulls; pulls != nil {
			t.readPulls = func() func(*v1.Pod) string { return pulls(q.r.Context()) }
		}
		return t
	case "nodes":
		return &table{columns: nodeColumns, row: rowOf(nodeRow)}
	case "namespaces":
		return &table{columns: namespaceColumns, row: rowOf(namespaceRow)}
	case "events":
		return &table{columns: eventColumns, row: rowOf(eventRow)}
	}
	return nil
}

func rowOf[P kinds.Object](row func(P, time.Time) metav1.TableRow) func(kinds.Object, time.Time) metav1.TableRow {
	return func(o kinds.Object, now time.Time) metav1.TableRow { return row(o.(P), now) }
}

// check also reads the options, which kube-apiserver does after it has read the objects.
func (t *table) check(q *request, n amount) error {
	if n == watched {
		return nil // canWatch has read them
	}
	return t.readOptions(q)
}

// readOptions reads which part of the objects accompanies the rows.
func (t *table) readOptions(q *request) error {
	t.include = metav1.IncludeObjectPolicy(q.r.URL.Query().Get("includeObject"))
	switch t.include {
	case metav1.IncludeNone, metav1.IncludeMetadata, metav1.IncludeObject:
	case "":
		t.include = metav1.IncludeMetadata
	default:
		err := field.Invalid(field.NewPath("includeObject"), string(t.include), "must be 'Metadata', 'Object', 'None', or empty")
		return apierrors.NewBadRequest(fmt.Sprintf("Unable to convert to Table as requested: %v", err))
	}
	return nil
}

func (*table) kinds(*kinds.Kind) shownKinds {
	kind := metav1.SchemeGroupVersion.WithKind("Table")
	return shownKinds{kind, kind}
}

// begin returns what precedes the rows of a list.
func (t *table) begin() (string, error) {
	text, err := json.Marshal(t.columns)
	return `,"columnDefinitions":` + string(text) + `,"rows":[`, err
}

func (t *table) item(o object) (any, error) { return t.rowFor(o) }

func (t *table) rowFor(o object) (metav1.TableRow, error) {
	stored, err := o.stored()
	if err != nil {
		return metav1.TableRow{}, err
	}
	row := t.row(stored, time.Now())
	if p, ok := stored.(*v1.Pod); ok && t.readPulls != nil && p.Status.Phase == v1.PodPending {
		if t.pulls == nil {
			t.pulls = t.readPulls()
		}
		row.Cells[statusCell] = row.Cells[statusCell].(string) + t.pulls(p)
	}
	include := t.include
	if include == metav1.IncludeNone && o.key == (store.Key{}) {
		include = metav1.IncludeMetadata // a bookmark is useless without
	}
	switch include {
	case metav1.IncludeObject:
		whole := toKind(o.kind, stored)
		whole.GetObjectKind().SetGroupVersionKind(o.kind.GroupVersionKind)
		row.Object.Object = whole
	case metav1.IncludeMetadata:
		m, err := partial{}.alone(o)
		if err != nil {
			return row, err
		}
		row.Object.Object = m.(runtime.Object)
	}
	return row, nil
}

// alone returns a table with one row. In a watch, only the first one has columns.
func (t *table) alone(o object) (any, error) {
	t.pulls = nil // from an earlier event
	row, err := t.rowFor(o)
	one := &metav1.Table{
		TypeMeta: metav1.TypeMeta{Kind: "Table", APIVersion: metav1.SchemeGroupVersion.String()},
		ListMeta: metav1.ListMeta{ResourceVersion: o.version()},
		Rows:     []metav1.TableRow{row},
	}
	if !t.sentColumns {
		one.ColumnDefinitions = t.columns
	}
	t.sentColumns = true
	return one, err
}

// message always fails: tables have no protobuf, and negotiation rejects it.
func (*table) message(o object) ([]byte, error) {
	return nil, fmt.Errorf("%s: a table has no protobuf", o.key)
}

func column(name string, priority int32, description string) metav1.TableColumnDefinition {
	c := metav1.TableColumnDefinition{Name: name, Type: "string", Description: description, Priority: priority}
	if name == "Name" {
		c.Format = "name"
	}
	return c
}

var (
	objectDoc = metav1.ObjectMeta{}.SwaggerDoc()
	nameDoc   = objectDoc["name"]
	ageDoc    = objectDoc["creationTimestamp"]
)
