package images

import (
	"crypto/sha256"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"

	"berth/internal/observe/metrics/metricstest"
)

// providerConfig is a configuration of one provider, with lines replaced or added.
func providerConfig(name string, lines ...string) string {
	return fmt.Sprintf("apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n- name: %s\n  %s\n", name, strings.Join(lines, "\n  "))
}

const usual = "matchImages: [\"*.example\"]\n  defaultCacheDuration: 1m\n  apiVersion: credentialprovider.kubelet.k8s.io/v1"

func TestLoadProviders(t *testing.T) {
	bin := t.TempDir()
	for _, name := range []string{"good", "other"} {
		script(t, bin, name, "exit 1")
	}
	tests := map[string]struct{ content, want string }{
		"good":              {providerConfig("good", usual), ""},
		"older versions":    {strings.ReplaceAll(providerConfig("good", strings.Replace(usual, "/v1", "/v1beta1", 1)), "config.k8s.io/v1\n", "config.k8s.io/v1alpha1\n"), ""},
		"another kind":      {"apiVersion: v1\nkind: Pod\n", `apiVersion "v1", kind "Pod": must be kubelet.config.k8s.io/v1, CredentialProviderConfig`},
		"none":              {"apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders: []\n", "providers: at least one is required"},
		"unknown field":     {providerConfig("good", usual, "matchImage: x"), `unknown field "matchImage"`},
		"no program":        {providerConfig("absent", usual), "providers[0]: name: the program is not in --image-credential-provider-bin-dir"},
		"a path":            {providerConfig("../good", usual), `providers[0]: name: "../good" must be the file name of a program`},
		"nothing matched":   {providerConfig("good", strings.Replace(usual, `["*.example"]`, "[]", 1)), "providers[0]: matchImages: at least one is required"},
		"bad pattern":       {providerConfig("good", strings.Replace(usual, `"*.example"`, `ok.example, "a..b"`, 1)), `providers[0]: matchImages[1]: "a..b": the host is malformed`},
		"no cache duration": {providerConfig("good", strings.Replace(usual, "  defaultCacheDuration: 1m\n", "", 1)), "providers[0]: defaultCacheDuration: is required"},
		"negative":          {providerConfig("good", strings.Replace(usual, "1m", "-1m", 1)), "providers[0]: defaultCacheDuration: -1m0s is less than 0"},
		"another version":   {providerConfig("good", strings.Replace(usual, "/v1", "/v3", 1)), `providers[0]: apiVersion: "credentialprovider.kubelet.k8s.io/v3" must be one of`},
		"bad variable":      {providerConfig("good", usual, `env: [{name: "A=B", value: c}]`), `providers[0]: env[0].name: "A=B" is not the name of a variable`},
		"no API server":     {providerConfig("good", usual, tokens), `providers[0]: tokenAttributes: provider "good" wants tokens of service accounts, which an API server issues`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "config.yaml")
			write(t, file, tt.content, 0o600)
			_, err := LoadProviders(file, bin, nil, nil)
			switch {
			case tt.want == "" && err != nil:
				t.Error(err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), file)):
				t.Errorf("error %v, want %q and the file's name", err, tt.want)
			}
		})
	}
	t.Run("folder", func(t *testing.T) {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "20.json"), `{"apiVersion":"kubelet.config.k8s.io/v1","kind":"CredentialProviderConfig","providers":[{"name":"good","matchImages":["a"],"defaultCacheDuration":"1m","apiVersion":"credentialprovider.kubelet.k8s.io/v1"}]}`, 0o600)
		write(t, filepath.Join(dir, "10.yaml"), providerConfig("other", usual), 0o600)
		write(t, filepath.Join(dir, "README"), "not one", 0o600)
		p, err := LoadProviders(dir, bin, nil, nil)
		if err != nil || len(p.all) != 2 || p.all[0].conf.Name != "other" {
			t.Fatalf("%v, %v; want other, good", p, err)
		}
		write(t, filepath.Join(dir, "30.yml"), providerConfig("good", usual), 0o600)
		if _, err := LoadProviders(dir, bin, nil, nil); err == nil || !strings.Contains(err.Error(), `name: "good" is also in `+filepath.Join(dir, "20.json")) {
			t.Errorf("a name that is there twice: %v", err)
		}
	})
}

// The program gets the request on its input and the environment, and its answer is kept as it says.
func TestProviderProtocol(t *testing.T) {
	const answer = `{"kind":"CredentialProviderResponse","apiVersion":"credentialprovider.kubelet.k8s.io/v1","cacheKeyType":"%s"%s,"auth":{"*.example":{"username":"jane","password":"xyzzy"},"other.example":{"username":"x","password":"y"}}}`
	ask := []string{"a.example/x:1", "a.example/x:2", "a.example/y:1", "b.example/x:1"}
	tests := map[string]struct {
		kind, duration string
		runs           int // for these four, twice
	}{
		"image":    {"Image", "", 3},
		"registry": {"Registry", "", 2},
		"global":   {"Global", `,"cacheDuration":"30s"`, 1},
		"nothing":  {"Global", `,"cacheDuration":"0s"`, 8},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bin := t.TempDir()
				script(t, bin, "good", fmt.Sprintf("cat >> %s/asked; echo \" $A $1\" >> %s/asked\necho '%s'", bin, bin, fmt.Sprintf(answer, tt.kind, tt.duration)))
				file := filepath.Join(bin, "config.yaml")
				write(t, file, providerConfig("good", usual, "args: [get]", "env: [{name: A, value: b}]"), 0o600)
				p, err := LoadProviders(file, bin, nil, nil)
				if err != nil {
					t.Fatal(err)
				}
				for range 2 {
					for _, image := range ask {
						found, err := p.lookup(t.Context(), mustParse(t, image), &v1.Pod{}, slog.New(slog.DiscardHandler))
						if diff := cmp.Diff([]credential{{auth: auth{Username: "jane", Password: "xyzzy"}}}, found, cmp.AllowUnexported(credential{})); diff != "" || err != nil {
							t.Fatalf("%v (-want +got):\n%s", err, diff)
						}
					}
				}
				asked, err := os.ReadFile(bin + "/asked")
				if err != nil {
					t.Fatal(err)
				}
				lines := strings.Split(strings.TrimSpace(string(asked)), "\n")
				want := `{"kind":"CredentialProviderRequest","apiVersion":"credentialprovider.kubelet.k8s.io/v1","image":"a.example/x"} b get`
				if len(lines) != tt.runs || lines[0] != want {
					t.Errorf("asked %d times, first %s; want %d times, %s", len(lines), lines[0], tt.runs, want)
				}
				time.Sleep(time.Minute)
				if _, err := p.lookup(t.Context(), mustParse(t, ask[0]), &v1.Pod{}, slog.New(slog.DiscardHandler)); err != nil {
					t.Error(err)
				}
				asked, err = os.ReadFile(bin + "/asked")
				if err != nil || strings.Count(string(asked), "\n") != tt.runs+1 {
					t.Errorf("the cache outlives its time: %s, %v", asked, err)
				}
				if found, err := p.lookup(t.Context(), mustParse(t, "nginx"), &v1.Pod{}, slog.New(slog.DiscardHandler)); len(found) > 0 || err != nil {
					t.Errorf("asked for an image that it is not for: %v, %v", found, err)
				}
			})
		})
	}
}

func TestProviderFails(t *testing.T) {
	tests := map[string]struct{ body, want string }{
		"exit code":    {"echo 'no login' >&2; echo more >&2; exit 3", `credential provider "bad": exit status 3: "no login"`},
		"no answer":    {"true", "its answer is not the JSON of a CredentialProviderResponse"},
		"no JSON":      {"echo s3cret", "its answer is not the JSON of a CredentialProviderResponse"},
		"wrong kind":   {`echo '{"kind":"Pod","apiVersion":"v1"}'`, `its answer is a "Pod" of version "v1": must be a CredentialProviderResponse`},
		"wrong vers.":  {`echo '{"kind":"CredentialProviderResponse","apiVersion":"credentialprovider.kubelet.k8s.io/v1beta1"}'`, `of version "credentialprovider.kubelet.k8s.io/v1beta1"`},
		"no cache key": {`echo '{"kind":"CredentialProviderResponse","apiVersion":"credentialprovider.kubelet.k8s.io/v1"}'`, `its cacheKeyType is "": must be Image, Registry or Global`},
		"endless":      {"cat /dev/zero | head -c 3000000", "its answer is longer than 1048576 bytes"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			bin := t.TempDir()
			script(t, bin, "bad", tt.body)
			file := filepath.Join(bin, "config.yaml")
			write(t, file, providerConfig("bad", usual), 0o600)
			registry := prometheus.NewRegistry()
			p, err := LoadProviders(file, bin, nil, registry)
			if err != nil {
				t.Fatal(err)
			}
			found, err := p.lookup(t.Context(), mustParse(t, "a.example/x"), &v1.Pod{}, slog.New(slog.DiscardHandler))
			failures := 1.0
			if name == "no cache key" {
				failures = 0
			}
			content, err2 := os.ReadFile(file)
			if err2 != nil {
				t.Fatal(err2)
			}
			metricstest.Expect(t, registry, map[string]float64{
				fmt.Sprintf("kubelet_credential_provider_config_info{hash=\"sha256:%x\"}", sha256.Sum256(content)): 1,
				`kubelet_credential_provider_plugin_duration_count{plugin_name="bad"}`:                             1, `kubelet_credential_provider_plugin_errors_total{plugin_name="bad"}`: failures,
			})
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "s3cret") || len(found) > 0 {
				t.Errorf("%v, %v; want error %s", found, err, tt.want)
			}
		})
	}
}

func mustParse(t *testing.T, image string) names {
	t.Helper()
	n, err := parseName(image)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func script(t *testing.T, dir, name, body string) {
	t.Helper()
	write(t, filepath.Join(dir, name), "#!/bin/sh\n"+body+"\n", 0o700)
}

func write(t *testing.T, path, content string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
}
