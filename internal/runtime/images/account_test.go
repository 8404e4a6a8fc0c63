package images

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	credentialprovider "k8s.io/kubelet/pkg/apis/credentialprovider/v1"

	"berth/internal/pod"
)

const tokens = "tokenAttributes: {serviceAccountTokenAudience: a, cacheType: Token, requireServiceAccount: true}"

func TestLoadProvidersWithTokens(t *testing.T) {
	bin := t.TempDir()
	script(t, bin, "good", "exit 1")
	change := func(old, next string) string { return strings.Replace(tokens, old, next, 1) }
	more := func(lists string) string { return change("}", ", "+lists+"}") }
	for name, tt := range map[string]struct{ attributes, want string }{
		"good":               {more("requiredServiceAccountAnnotationKeys: [x.io/a, b], optionalServiceAccountAnnotationKeys: [x.io/b]"), ""},
		"by account":         {change("Token,", "ServiceAccount,"), ""},
		"for nodes too":      {change("true", "false"), ""},
		"optional for nodes": {change("true", "false, optionalServiceAccountAnnotationKeys: [a]"), ""},
		"no audience":        {change("serviceAccountTokenAudience: a, ", ""), "tokenAttributes.serviceAccountTokenAudience: is required"},
		"no cache type":      {change("cacheType: Token, ", ""), "tokenAttributes.cacheType: is required: Token or ServiceAccount"},
		"bad cache type":     {change("Token,", "Pod,"), `tokenAttributes.cacheType: "Pod" must be Token or ServiceAccount`},
		"no requirement":     {change(", requireServiceAccount: true", ""), "tokenAttributes.requireServiceAccount: is required: true or false"},
		"required of none":   {change("true", "false, requiredServiceAccountAnnotationKeys: [a]"), "tokenAttributes.requiredServiceAccountAnnotationKeys: needs requireServiceAccount: true"},
		"bad key":            {more("requiredServiceAccountAnnotationKeys: [a, /b]"), `tokenAttributes.requiredServiceAccountAnnotationKeys[1]: "/b": prefix part`},
		"bad optional key":   {more(`optionalServiceAccountAnnotationKeys: ["a b"]`), `tokenAttributes.optionalServiceAccountAnnotationKeys[0]: "a b": name part`},
		"twice":              {more("optionalServiceAccountAnnotationKeys: [a, a]"), `optionalServiceAccountAnnotationKeys[1]: "a" is also in optionalServiceAccountAnnotationKeys`},
		"in both":            {more("requiredServiceAccountAnnotationKeys: [a], optionalServiceAccountAnnotationKeys: [a]"), `optionalServiceAccountAnnotationKeys[0]: "a" is also in requiredServiceAccountAnnotationKeys`},
		"older version":      {"apiVersion: credentialprovider.kubelet.k8s.io/v1beta1\n  " + tokens, "tokenAttributes: needs apiVersion: credentialprovider.kubelet.k8s.io/v1"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "config.yaml")
			lines := usual
			if strings.HasPrefix(tt.attributes, "apiVersion") {
				lines = strings.TrimSuffix(usual, "\n  apiVersion: credentialprovider.kubelet.k8s.io/v1")
			}
			write(t, file, providerConfig("good", lines, tt.attributes), 0o600)
			_, err := LoadProviders(file, bin, &directory{}, nil)
			switch {
			case tt.want == "" && err != nil:
				t.Error(err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), "providers[0]: "+tt.want) && !strings.Contains(err.Error(), "providers[0]: tokenAttributes."+tt.want)):
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}

// directory has the service accounts of one namespace, by name.
type directory struct {
	accounts map[string]*v1.ServiceAccount
	err      error
	reads    int
	issued   int
}

func (d *directory) ServiceAccount(_ context.Context, p *v1.Pod) (*v1.ServiceAccount, error) {
	d.reads++
	if a, ok := d.accounts[p.Spec.ServiceAccountName]; ok && d.err == nil {
		return a, nil
	}
	return nil, errors.Join(d.err, errors.New("no such account"))
}

func (d *directory) ImageToken(_ context.Context, p *v1.Pod, a *v1.ServiceAccount, audience string) (string, error) {
	d.issued++
	return fmt.Sprintf("%s of %s %s for %s", audience, a.Name, a.UID, p.Name), d.err
}

func (d *directory) add(name string, uid types.UID, annotations map[string]string) {
	if d.accounts == nil {
		d.accounts = map[string]*v1.ServiceAccount{}
	}
	d.accounts[name] = &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: uid, Annotations: annotations}}
}

func podOf(name, account string) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}, Spec: v1.PodSpec{ServiceAccountName: account}}
}

// asking is a provider that writes down what it is asked, and says a password that is the number of
// the question.
type asking struct {
	t     *testing.T
	file  string
	names *directory
	*Providers
}

func newAsking(t *testing.T, attributes string) *asking {
	t.Helper()
	bin := t.TempDir()
	a := &asking{t: t, file: bin + "/asked", names: &directory{}}
	script(t, bin, "good", fmt.Sprintf(`cat >> %[1]s; echo >> %[1]s
echo '{"kind":"CredentialProviderResponse","apiVersion":"credentialprovider.kubelet.k8s.io/v1","cacheKeyType":"Registry","auth":{"*.example":{"username":"jane","password":"'$(wc -l < %[1]s)'"}}}'`, a.file))
	file := filepath.Join(bin, "config.yaml")
	write(t, file, providerConfig("good", usual, attributes), 0o600)
	var err error
	if a.Providers, err = LoadProviders(file, bin, a.names, nil); err != nil {
		t.Fatal(err)
	}
	return a
}

// ask returns the password and the account of the credential that the pod gets, or what went wrong.
func (a *asking) ask(p *v1.Pod) string {
	a.t.Helper()
	found, err := a.lookup(a.t.Context(), mustParse(a.t, "a.example/x:1"), p, slog.New(slog.DiscardHandler))
	if err != nil {
		return err.Error()
	}
	if len(found) == 0 {
		return "none"
	}
	account := "node"
	if at := found[0].account; at != nil {
		account = at.Namespace + "/" + at.Name + "/" + at.UID
	}
	return found[0].auth.Password + " " + account
}

func (a *asking) asked() []credentialprovider.CredentialProviderRequest {
	a.t.Helper()
	b, err := os.ReadFile(a.file)
	if err != nil {
		a.t.Fatal(err)
	}
	var all []credentialprovider.CredentialProviderRequest
	for line := range strings.Lines(string(b)) {
		var r credentialprovider.CredentialProviderRequest
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			a.t.Fatal(err)
		}
		all = append(all, r)
	}
	return all
}

// What a provider says is kept for the service account, or for the token.
func TestProviderGetsToken(t *testing.T) {
	for name, tt := range map[string]struct {
		cacheType string
		want      []string // the answers to the questions below
		issued    int
	}{
		"by account": {"ServiceAccount", []string{"1 ns/robot/1", "1 ns/robot/1", "1 ns/robot/1", "2 ns/other/2", "3 ns/robot/1", "4 ns/robot/3"}, 4},
		"by token":   {"Token", []string{"1 ns/robot/1", "1 ns/robot/1", "2 ns/robot/1", "3 ns/other/2", "4 ns/robot/1", "5 ns/robot/3"}, 6},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newAsking(t, "tokenAttributes: {serviceAccountTokenAudience: registry, cacheType: "+tt.cacheType+
					", requireServiceAccount: true, requiredServiceAccountAnnotationKeys: [x.io/id], optionalServiceAccountAnnotationKeys: [x.io/more, x.io/absent]}")
				a.names.add("robot", "1", map[string]string{"x.io/id": "7", "x.io/more": "m", "x.io/secret": "s"})
				a.names.add("other", "2", map[string]string{"x.io/id": "7", "x.io/more": "m"})
				got := []string{a.ask(podOf("one", "robot")), a.ask(podOf("one", "robot")), a.ask(podOf("two", "robot")), a.ask(podOf("one", "other"))}
				// What the provider does not see makes no difference.
				a.names.add("robot", "1", map[string]string{"x.io/id": "7", "x.io/more": "m", "x.io/secret": "t"})
				if again := a.ask(podOf("one", "robot")); again != "1 ns/robot/1" {
					t.Errorf("after another annotation changed: %s", again)
				}
				a.names.add("robot", "1", map[string]string{"x.io/id": "8"})
				got = append(got, a.ask(podOf("one", "robot")))
				a.names.add("robot", "3", map[string]string{"x.io/id": "8"})
				got = append(got, a.ask(podOf("one", "robot")))
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Errorf("answers (-want +got):\n%s", diff)
				}
				if name == "by account" && a.names.issued != tt.issued {
					t.Errorf("%d tokens were asked for, want %d: one for each run", a.names.issued, tt.issued)
				}
				first := a.asked()[0]
				want := credentialprovider.CredentialProviderRequest{
					TypeMeta: metav1.TypeMeta{Kind: "CredentialProviderRequest", APIVersion: "credentialprovider.kubelet.k8s.io/v1"}, Image: "a.example/x",
					ServiceAccountToken: "registry of robot 1 for one", ServiceAccountAnnotations: map[string]string{"x.io/id": "7", "x.io/more": "m"},
				}
				if diff := cmp.Diff(want, first); diff != "" {
					t.Errorf("request (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestPodsWithoutServiceAccount(t *testing.T) {
	static := podOf("static", "robot")
	static.Annotations = map[string]string{pod.ConfigSourceAnnotation: "file"}
	missing := `credential provider "good": service account ns/plain has no annotation "x.io/id", which the provider requires`
	const required = "tokenAttributes: {serviceAccountTokenAudience: a, cacheType: ServiceAccount, requireServiceAccount: true, requiredServiceAccountAnnotationKeys: [x.io/id]}"
	const open = "tokenAttributes: {serviceAccountTokenAudience: a, cacheType: ServiceAccount, requireServiceAccount: false}"
	for name, tt := range map[string]struct {
		attributes string
		pod        *v1.Pod
		want       string
	}{
		"skipped":                 {required, podOf("p", ""), "none"},
		"static, skipped":         {required, static, "none"},
		"required annotation":     {required, podOf("p", "plain"), missing},
		"no such account":         {required, podOf("p", "absent"), `credential provider "good": no such account`},
		"asked for the node":      {open, podOf("p", ""), "1 node"},
		"static, for the node":    {open, static, "1 node"},
		"with one, by the way":    {open, podOf("p", "plain"), "1 ns/plain/2"},
		"no such account, by way": {open, podOf("p", "absent"), `credential provider "good": no such account`},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAsking(t, tt.attributes)
			a.names.add("robot", "1", map[string]string{"x.io/id": "7"})
			a.names.add("plain", "2", nil)
			if got := a.ask(tt.pod); got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
			if strings.HasSuffix(tt.want, "node") {
				if r := a.asked()[0]; r.ServiceAccountToken != "" || r.ServiceAccountAnnotations != nil {
					t.Errorf("a token without a service account: %+v", r)
				}
			}
		})
	}
}

// Neither an error nor what a provider complains of shows the token.
func TestTokenIsHidden(t *testing.T) {
	bin := t.TempDir()
	script(t, bin, "bad", "cat >&2; exit 1")
	file := filepath.Join(bin, "config.yaml")
	write(t, file, providerConfig("bad", usual, tokens), 0o600)
	names := &directory{}
	names.add("robot", "1", nil)
	p, err := LoadProviders(file, bin, names, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = p.lookup(t.Context(), mustParse(t, "a.example/x"), podOf("p", "robot"), slog.New(slog.DiscardHandler))
	if err == nil || strings.Contains(err.Error(), "a of robot") || !strings.Contains(err.Error(), "(hidden)") {
		t.Errorf("%v; want the complaint without the token", err)
	}
}
