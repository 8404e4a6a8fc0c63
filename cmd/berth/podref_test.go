package main

import (
	"errors"
	"slices"
	"testing"

	"berth/internal/record/journal"
)

func TestParsePodRef(t *testing.T) {
	for _, c := range []struct {
		arg, namespace string
		want           podRef
		bad            bool
	}{
		{arg: "web", want: podRef{"", "web"}},
		{arg: "web", namespace: "shop", want: podRef{"shop", "web"}},
		{arg: "shop/web", want: podRef{"shop", "web"}},
		{arg: "shop/web", namespace: "shop", want: podRef{"shop", "web"}},
		{arg: "shop/web", namespace: "other", bad: true},
		{arg: "pod/web", want: podRef{"", "web"}},
		{arg: "po/web", want: podRef{"", "web"}},
		{arg: "pods/shop/web", want: podRef{"shop", "web"}},
		{arg: "pod/", bad: true},
		{arg: "/web", bad: true},
		{arg: "a/b/c", bad: true},
		{arg: "", bad: true},
	} {
		got, err := parsePodRef(c.arg, c.namespace)
		if (err != nil) != c.bad || got != c.want {
			t.Errorf("%q in %q: got %+v, %v", c.arg, c.namespace, got, err)
		}
	}
}

func TestNearest(t *testing.T) {
	known := []podRef{{"default", "hello-web"}, {"default", "two"}, {"shop", "web"}, {"shop", "hello-web"}}
	for _, c := range []struct {
		ref  podRef
		want []string
	}{
		{podRef{"", "helo-web"}, []string{`"hello-web"`}},
		{podRef{"shop", "helo-web"}, []string{`"default/hello-web"`, `"shop/hello-web"`}},
		{podRef{"", "web"}, []string{`"web"`, `"hello-web"`}},
		{podRef{"", "database"}, nil},
	} {
		if got := nearest(c.ref, known); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, want %q", c.ref, got, c.want)
		}
	}
}

func TestChooseSubject(t *testing.T) {
	subjects := []journal.Subject{
		{Name: "broken.yaml"},
		{UID: "1", Namespace: "default", Name: "web"},
		{UID: "2", Namespace: "default", Name: "web"}, // the next incarnation
		{UID: "3", Namespace: "default", Name: "db"},
		{UID: "4", Namespace: "shop", Name: "db"},
	}
	for _, c := range []struct {
		arg, namespace string
		want           journal.Subject
		err            string
	}{
		{arg: "broken.yaml", want: journal.Subject{Name: "broken.yaml"}},
		{arg: "manifests/broken.yaml", want: journal.Subject{Name: "broken.yaml"}},
		{arg: "web", want: journal.Subject{Namespace: "default", Name: "web"}},
		{arg: "pod/web", want: journal.Subject{Namespace: "default", Name: "web"}},
		{arg: "db", namespace: "shop", want: journal.Subject{Namespace: "shop", Name: "db"}},
		{arg: "shop/db", want: journal.Subject{Namespace: "shop", Name: "db"}},
		{arg: "db", err: `pod "db" is in several namespaces: say which one: default/db or shop/db`},
		{arg: "brokn.yaml", err: `pod "brokn.yaml" not found; did you mean "broken.yaml"?`},
	} {
		got, err := chooseSubject(subjects, c.arg, c.namespace)
		if c.err != "" && (err == nil || err.Error() != c.err) || c.err == "" && (err != nil || got != c.want) {
			t.Errorf("%q: got %+v, %v", c.arg, got, err)
		}
	}
	if _, err := chooseSubject(nil, "web", ""); !errors.Is(err, errNotFound) {
		t.Errorf("an empty journal: got %v", err)
	}
}
