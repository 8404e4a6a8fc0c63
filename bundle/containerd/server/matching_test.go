package server

import "testing"

func TestMayMatch(t *testing.T) {
	labels := map[string]string{"app": "web", "tier": ""}
	for name, c := range map[string]struct {
		id, pod string
		labels  map[string]string
		want    bool
	}{
		"no filter":           {want: true},
		"the id":              {id: "0123", want: true},
		"the id's beginning":  {id: "01", want: true},
		"another id":          {id: "0124"},
		"a longer id":         {id: "01234"},
		"the pod":             {pod: "ab", want: true},
		"another pod":         {pod: "b"},
		"labels":              {labels: labels, want: true},
		"an empty label":      {labels: map[string]string{"tier": ""}, want: true},
		"a label it has not":  {labels: map[string]string{"zone": ""}},
		"a label of another":  {labels: map[string]string{"app": "db"}},
		"id, pod and a label": {id: "0123", pod: "abcd", labels: map[string]string{"app": "web"}, want: true},
		"id and another pod":  {id: "0123", pod: "abce"},
	} {
		if got := mayMatch("0123", "abcd", labels, c.id, c.pod, c.labels); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
