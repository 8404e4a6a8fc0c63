package differences

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"
)

// Server is one of the two servers.
type Server struct {
	Name   string
	Config *rest.Config
	// Namespace is there, and nobody else writes into it. The names of both are of the same length.
	Namespace string
}

// Step is one request. In it @ns@ and @name@ are the namespace and the name of the sequence, @uid@
// and @rv@ what the newest answer with an object had, @oldrv@ what the first one had.
type Step struct {
	Method, Path        string
	ContentType, Accept string
	Body                string
}

// String is the step as one reads it.
func (s Step) String() string {
	text := s.Method + " " + s.Path
	if s.Accept != "" {
		text += "\n  Accept: " + s.Accept
	}
	if s.Body != "" {
		body := filling.ReplaceAllStringFunc(s.Body, func(x string) string { return fmt.Sprintf("(%d times x)", len(x)) })
		text += fmt.Sprintf("\n  %s: %.4000s", s.ContentType, body)
	}
	return text
}

// filling is what makes a text too long.
var filling = regexp.MustCompile(`x{60,}`)

// answer is what a server says to a step.
type answer struct {
	code     int
	warnings []string
	mime     string
	body     []byte
}

// side is one server at work on one sequence.
type side struct {
	client    *http.Client
	base      string
	namespace string
	name      string

	uid, version, first string           // of the object, as it was answered
	others              []string         // names of what was created under another name
	generators          []*regexp.Regexp // of names that the server makes
}

// expect notes which name a server makes for a body. It may be shown as it is, or quoted.
func (s *side) expect(body string) {
	asJSON, err := yaml.YAMLToJSON([]byte(body)) // JSON is YAML
	if err != nil {
		return
	}
	object, _ := decode(asJSON).(map[string]any)
	metadata, _ := object["metadata"].(map[string]any)
	prefix, _ := metadata["generateName"].(string)
	if prefix == "" {
		return
	}
	const longest = 58 // of what is before the five letters that a server adds
	prefix = prefix[:min(len(prefix), longest)]
	quoted := strconv.Quote(prefix)
	for _, form := range []string{prefix, quoted[1 : len(quoted)-1]} {
		s.generators = append(s.generators, regexp.MustCompile(regexp.QuoteMeta(form)+"[bcdfghjklmnpqrstvwxz2456789]{5}"))
	}
}

// newSide is a server under the name that the objects of a sequence have there.
func newSide(s Server, name string) (*side, error) {
	client, err := rest.HTTPClientFor(s.Config)
	if err != nil {
		return nil, err
	}
	base, _, err := rest.DefaultServerUrlFor(s.Config)
	if err != nil {
		return nil, err
	}
	return &side{client: client, base: strings.TrimSuffix(base.String(), "/"), namespace: s.Namespace, name: name}, nil
}

// fill puts into a text what the words in it stand for on this side.
func (s *side) fill(text string) string {
	return strings.NewReplacer("@ns@", s.namespace, "@name@", s.name, "@uid@", s.uid, "@rv@", s.version, "@oldrv@", s.first).Replace(text)
}

// send sends a step and reads its answer.
func (s *side) send(ctx context.Context, step Step) (answer, error) {
	body := s.fill(step.Body)
	s.expect(body)
	r, err := http.NewRequestWithContext(ctx, step.Method, s.base+s.fill(step.Path), strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	r.Header.Set("User-Agent", "differences")
	if step.ContentType != "" {
		r.Header.Set("Content-Type", step.ContentType)
	}
	if step.Accept != "" {
		r.Header.Set("Accept", step.Accept)
	}
	got, err := s.client.Do(r)
	if err != nil {
		return broken(err)
	}
	defer got.Body.Close()
	text, err := io.ReadAll(got.Body)
	if err != nil {
		return broken(fmt.Errorf("%s %s: %w", step.Method, step.Path, err))
	}
	mime, _, _ := strings.Cut(got.Header.Get("Content-Type"), ";")
	a := answer{got.StatusCode, got.Header.Values("Warning"), mime, text}
	s.learn(a)
	return a, nil
}

// broken is the answer of a server that panics over a request: none, on a connection that lives on.
// Another error is that the server cannot be reached.
func broken(err error) (answer, error) {
	if strings.Contains(err.Error(), "INTERNAL_ERROR; received from peer") {
		return answer{body: []byte(err.Error())}, nil
	}
	return answer{}, err
}

// learn remembers what later steps refer to.
func (s *side) learn(a answer) {
	object, ok := decode(a.body).(map[string]any)
	if !ok || a.code >= http.StatusMultipleChoices {
		return
	}
	metadata, _ := object["metadata"].(map[string]any)
	name, _ := metadata["name"].(string)
	if name != s.name {
		if a.code == http.StatusCreated && name != "" {
			s.others = append(s.others, name)
		}
		return
	}
	if uid, ok := metadata["uid"].(string); ok {
		s.uid = uid
	}
	if version, ok := metadata["resourceVersion"].(string); ok {
		s.version = version
		if s.first == "" {
			s.first = version
		}
	}
}
