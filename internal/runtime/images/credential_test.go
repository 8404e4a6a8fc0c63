package images

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
)

func TestKeyringOrder(t *testing.T) {
	ring := keyring{}
	for i, pattern := range []string{"*.example", "registry.example", "registry.example/team", "registry.example/team/app", "other.example", "a..b"} {
		ring.add(map[string]auth{pattern: {Username: fmt.Sprint(i)}}, nil)
	}
	ring.add(map[string]auth{"registry.example": {Username: "second"}}, nil)
	n, err := parseName("registry.example/team/app:1")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range ring.lookup(locate(n.full)) {
		got = append(got, c.auth.Username)
	}
	if diff := cmp.Diff([]string{"3", "2", "1", "second", "0"}, got); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}

// A journal says where credentials are from, each source once, and nothing of them.
func TestDescribe(t *testing.T) {
	secret := &pullSecret{Namespace: "default", Name: "reg"}
	for want, credentials := range map[string][]credential{
		"without credentials: none fits the registry": nil,
		"with Secret default/reg, then ServiceAccount default/robot, then the node's credentials": {
			{auth: auth{Username: "token-that-is-secret"}, secret: secret},
			{auth: auth{Password: "xyzzy"}, secret: secret},
			{auth: auth{Password: "xyzzy"}, account: &pullServiceAccount{Namespace: "default", Name: "robot"}},
			{auth: auth{Password: "xyzzy"}},
		},
	} {
		if got := describe(credentials); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestAuthIsHidden(t *testing.T) {
	c := auth{Username: "jane", Password: "xyzzy"}
	if s := fmt.Sprintf("%v %+v %#v %s", c, c, c, c); strings.Contains(s, "xyzzy") {
		t.Errorf("printed: %s", s)
	}
}

func TestDockerConfigs(t *testing.T) {
	encoded := base64.StdEncoding.EncodeToString([]byte("jane:a:b"))
	tests := map[string]struct {
		content string
		parse   func([]byte) (map[string]auth, error)
		want    map[string]auth
		err     string
	}{
		"config.json": {
			`{"auths":{"a.example":{"auth":"` + encoded + `","username":"x","password":"y"},"b.example":{"username":"u","password":"p"},"c.example":{},"d.example":{"auth":"` + encoded + `","identitytoken":"t"}},"credsStore":"x"}`,
			parseDockerConfigJSON,
			map[string]auth{"a.example": {Username: "jane", Password: "a:b"}, "b.example": {Username: "u", Password: "p"}, "d.example": {Username: "jane", Password: "a:b", IdentityToken: "t"}},
			"",
		},
		".dockercfg":    {`{"a.example":{"auth":"` + encoded + `","email":"e"}}`, parseDockerCfg, map[string]auth{"a.example": {Username: "jane", Password: "a:b"}}, ""},
		"nothing":       {`{}`, parseDockerConfigJSON, map[string]auth{}, ""},
		"no base64":     {`{"auths":{"a.example":{"auth":"hunter2!"}}}`, parseDockerConfigJSON, nil, `the auth of "a.example" is not the base64 of username:password`},
		"no colon":      {`{"auths":{"a.example":{"auth":"aHVudGVy"}}}`, parseDockerConfigJSON, nil, `the auth of "a.example" is not the base64 of username:password`},
		"no JSON":       {`{"auths": hunter2}`, parseDockerConfigJSON, nil, "is not JSON (at byte 11)"},
		"another type":  {`{"auths":{"a.example":{"password":12345}}}`, parseDockerConfigJSON, nil, "a value has another type than string (at byte 39)"},
		"a list":        {`[]`, parseDockerCfg, nil, "a value has another type than map[string]images.dockerEntry (at byte 1)"},
		"empty content": {``, parseDockerCfg, nil, "is not JSON (at byte 0)"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := tt.parse([]byte(tt.content))
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(auth{})); diff != "" {
				t.Errorf("auths (-want +got):\n%s", diff)
			}
			if fmt.Sprint(err) != tt.err && (err != nil || tt.err != "") {
				t.Errorf("error %v, want %s", err, tt.err)
			}
		})
	}
}

func TestReadDockerConfigTakesTheFirst(t *testing.T) {
	dir := t.TempDir()
	files := []string{filepath.Join(dir, "absent", "config.json"), filepath.Join(dir, "bad", "config.json"), filepath.Join(dir, ".dockercfg"), filepath.Join(dir, "late", "config.json")}
	for file, content := range map[string]string{
		files[1]: `{"auths": s3cret}`, files[2]: `{"a.example":{"username":"u"}}`, files[3]: `{"auths":{"b.example":{"username":"u"}}}`,
	} {
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := readDockerConfig(files)
	if diff := cmp.Diff(map[string]auth{"a.example": {Username: "u"}}, got); diff != "" {
		t.Errorf("auths (-want +got):\n%s", diff)
	}
	if err == nil || !strings.Contains(err.Error(), files[1]) || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("error %v: must name %s and quote nothing of it", err, files[1])
	}
}

func TestDockerConfigFiles(t *testing.T) {
	t.Setenv("HOME", "/data/berth")
	want := []string{
		"/var/lib/berth/config.json", "/data/berth/.docker/config.json", "/.docker/config.json",
		"/var/lib/berth/.dockercfg", "/data/berth/.dockercfg", "/.dockercfg",
	}
	if diff := cmp.Diff(want, DockerConfigFiles("/var/lib/berth")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAuthsOfSecret(t *testing.T) {
	for name, tt := range map[string]struct {
		secret v1.Secret
		want   string // the user, or the error
	}{
		"new":      {v1.Secret{Type: v1.SecretTypeDockerConfigJson, Data: map[string][]byte{".dockerconfigjson": []byte(`{"auths":{"a":{"username":"u"}}}`)}}, "u"},
		"old":      {v1.Secret{Type: v1.SecretTypeDockercfg, Data: map[string][]byte{".dockercfg": []byte(`{"a":{"username":"u"}}`)}}, "u"},
		"no key":   {v1.Secret{Type: v1.SecretTypeDockercfg}, "has no key .dockercfg"},
		"bad":      {v1.Secret{Type: v1.SecretTypeDockercfg, Data: map[string][]byte{".dockercfg": []byte(`x`)}}, ".dockercfg: is not JSON (at byte 1)"},
		"no creds": {v1.Secret{Type: v1.SecretTypeOpaque}, "is of type Opaque: credentials of registries are in secrets of type kubernetes.io/dockerconfigjson or kubernetes.io/dockercfg"},
	} {
		auths, err := authsOfSecret(&tt.secret)
		got := auths["a"].Username
		if err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}
