package lifecycle

import (
	"strings"
	"testing"
	"time"
)

func TestPodBackOff(t *testing.T) {
	const s = time.Second
	for _, tt := range []struct {
		name, text string
		node       BackOff
		want       BackOff
		err        string
	}{
		{name: "all", text: "initial=1s,maximum=1m,factor=3", node: node, want: BackOff{s, time.Minute, 3}},
		{name: "spaces and another order", text: " factor = 1.5 , maximum=1m, initial=2s ", node: node, want: BackOff{2 * s, time.Minute, 1.5}},
		{name: "initial alone", text: "initial=1s", node: node, want: BackOff{s, CrashMaximum, 2}},
		{name: "maximum alone, below the node's initial delay", text: "maximum=5s", node: node, want: BackOff{5 * s, 5 * s, 2}},
		{name: "factor alone", text: "factor=1", node: node, want: BackOff{CrashInitial, CrashMaximum, 1}},
		{name: "the node's maximum is the bound", text: "initial=1m,maximum=1h", node: NodeBackOff(30 * s), want: BackOff{30 * s, 30 * s, 2}},
		{name: "longer than the default maximum", text: "maximum=10m", node: node, want: BackOff{CrashInitial, CrashMaximum, 2}},
		{name: "empty", text: "", node: node, err: `"" is not of the form key=value; an example is initial=10s,maximum=5m0s,factor=2`},
		{name: "JSON", text: `{"initial": "1s"}`, node: node, err: "is not of the form key=value"},
		{name: "unknown key", text: "base=1s", node: node, err: `"base" is none of initial, maximum and factor`},
		{name: "given twice", text: "initial=1s,initial=2s", node: node, err: "initial is given twice"},
		{name: "no duration", text: "initial=10", node: node, err: `initial: "10" is not a duration of 1s or more, such as 10s`},
		{name: "too short", text: "maximum=999ms", node: node, err: `maximum: "999ms" is not a duration of 1s or more`},
		{name: "negative", text: "initial=-10s", node: node, err: "is not a duration of 1s or more"},
		{name: "no number", text: "factor=two", node: node, err: `factor: "two" is not a number from 1 to 10`},
		{name: "shrinking", text: "factor=0.5", node: node, err: "is not a number from 1 to 10"},
		{name: "not a number", text: "factor=NaN", node: node, err: "is not a number from 1 to 10"},
		{name: "exploding", text: "factor=11", node: node, err: "is not a number from 1 to 10"},
		{name: "initial above maximum", text: "initial=1m,maximum=30s", node: node, err: "initial 1m0s is more than maximum 30s"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := testPod("")
			p.Annotations = map[string]string{BackOffAnnotation: tt.text}
			got, err := PodBackOff(p, tt.node)
			if tt.err == "" {
				if err != nil || got != tt.want {
					t.Errorf("got %v, %v; want %v", got, err, tt.want)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.err) || !strings.HasPrefix(err.Error(), "annotation berth.dev/backoff: ") {
				t.Errorf("got error %v, want one that says %s", err, tt.err)
			}
			if got != tt.node {
				t.Errorf("beside the error is %v, want the node's back-off", got)
			}
		})
	}
	if got, err := PodBackOff(testPod(""), node); got != node || err != nil {
		t.Errorf("without an annotation: got %v, %v; want the node's back-off", got, err)
	}
	if got, err := parseBackOff(node.String(), NodeBackOff(0)); got != node || err != nil {
		t.Errorf("%s is read as %v, %v", node, got, err)
	}
}
