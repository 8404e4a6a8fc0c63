package crispec

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"berth/internal/record/events/messagestest"
)

func TestParseEnvFile(t *testing.T) {
	for name, tt := range map[string]struct {
		text string
		want map[string]string
		err  string
	}{
		"empty":                       {"", map[string]string{}, ""},
		"blank lines and comments":    {"\n  \n# A='1'\n \t# B='2'\n", map[string]string{}, ""},
		"values":                      {"A='1'\n  B='two words'\nC='3'", map[string]string{"A": "1", "B": "two words", "C": "3"}, ""},
		"literal":                     {`A='$HOME \n "x" # =y '`, map[string]string{"A": `$HOME \n "x" # =y `}, ""},
		"several lines":               {"A='one\n  two\n\n# three'\nB='4'", map[string]string{"A": "one\n  two\n\n# three", "B": "4"}, ""},
		"the last one wins":           {"A='1'\nA='2'", map[string]string{"A": "2"}, ""},
		"empty value":                 {"A=''\nB=\nC='3'", map[string]string{"A": "", "B": "", "C": "3"}, ""},
		"space after the equals sign": {"A= '1'\nB='2'", map[string]string{"A": "", "B": "2"}, ""},
		"space after the value":       {"A='1' \t\nB='2'", map[string]string{"A": "1", "B": "2"}, ""},
		"equals sign in the value":    {"A='=\"=\nB='", map[string]string{"A": "=\"=\nB="}, ""},
		"no quotes":                   {"A=1", nil, "line 1: the value is not in single quotes"},
		"double quotes":               {"\nA=\"1\"", nil, "line 2: the value is not in single quotes"},
		"expansion":                   {"A=${B}", nil, "line 1: the value is not in single quotes"},
		"adjacent values":             {"A='1''2'", nil, "line 1: there is more after the value's closing quote"},
		"appended expansion":          {"A='1'$B", nil, "line 1: there is more after the value's closing quote"},
		"comment after the value":     {"A='1' # one", nil, "line 1: there is more after the value's closing quote"},
		"carriage return":             {"A='1'\r\n", nil, "line 1: there is more after the value's closing quote"},
		"open quote":                  {"A='1'\nB='2\nC=3\n", nil, "line 2: the value lacks its closing quote"},
		"space before equals sign":    {"A ='1'", nil, "line 1: want NAME='value', without spaces around the equals sign"},
		"export":                      {"export A='1'", nil, "line 1: want NAME='value', without spaces around the equals sign"},
		"no name":                     {"='1'", nil, "line 1: want NAME='value', without spaces around the equals sign"},
		"no declaration":              {"A='one\ntwo'\nhello\n", nil, "line 3: want NAME='value', without spaces around the equals sign"},
		"quote in the name":           {"'A'='1'", nil, "line 1: want NAME='value', without spaces around the equals sign"},
		"null":                        {"A='1\x00'", nil, "line 1: the value has a null character, which no variable can have"},
	} {
		got, err := parseEnvFile(tt.text)
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if text := errorText(err); text != tt.err {
			t.Errorf("%s: error %q, want %q", name, text, tt.err)
		}
	}
}

func errorText(err error) string {
	messagestest.SawError(err)
	if err == nil {
		return ""
	}
	return err.Error()
}

func FuzzParseEnvFile(f *testing.F) {
	for _, s := range []string{"A='1'\n", "# c\n\nB='x\ny' \nC=\n", "A='", "=''", "A= '1'"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		values, err := parseEnvFile(text)
		for name, value := range values {
			if err != nil || name == "" || strings.ContainsAny(value, "'\x00") {
				t.Errorf("%q gives %q=%q, error %v", text, name, value, err)
			}
		}
	})
}

func TestFileKeyRef(t *testing.T) {
	yes := true
	ref := func(key string, optional *bool) v1.EnvVar {
		return v1.EnvVar{Name: "V", ValueFrom: &v1.EnvVarSource{FileKeyRef: &v1.FileKeySelector{VolumeName: "v", Path: "d/f.env", Key: key, Optional: optional}}}
	}
	good := map[EnvFile][]byte{{"v", "d/f.env"}: []byte("A='1'\nEMPTY=''\n")}
	for name, tt := range map[string]struct {
		env   v1.EnvVar
		files map[EnvFile][]byte
		want  []string
		err   string
	}{
		"value":                  {ref("A", nil), good, []string{"V=1"}, ""},
		"no such key":            {ref("B", nil), good, nil, `env "V": couldn't find key "B" in file "d/f.env" of volume "v"`},
		"empty":                  {ref("EMPTY", nil), good, nil, `env "V": couldn't find key "EMPTY" in file "d/f.env" of volume "v"`},
		"no file":                {ref("A", nil), nil, nil, `env "V": file "d/f.env" of volume "v" not found`},
		"optional key":           {ref("B", &yes), good, nil, ""},
		"optional empty":         {ref("EMPTY", &yes), good, nil, ""},
		"optional file":          {ref("A", &yes), nil, nil, ""},
		"damaged file, optional": {ref("A", &yes), map[EnvFile][]byte{{"v", "d/f.env"}: []byte("A=1")}, nil, `env "V": file "d/f.env" of volume "v": line 1: the value is not in single quotes`},
	} {
		p := newPod(func(p *v1.Pod) { p.Spec.Containers[0].Env = []v1.EnvVar{tt.env, {Name: "W", Value: "$(V)"}} })
		c := &p.Spec.Containers[0]
		if diff := cmp.Diff([]EnvFile{{"v", "d/f.env"}}, EnvFiles(c)); diff != "" {
			t.Errorf("%s: files (-want +got):\n%s", name, diff)
		}
		vars, _, err := environment(Container{Pod: p, Container: c, Environment: Environment{Files: tt.files}})
		if text := errorText(err); text != tt.err {
			t.Errorf("%s: error %q, want %q", name, text, tt.err)
			continue
		}
		if err != nil {
			continue
		}
		var got []string
		for _, v := range vars {
			if v.Key == "V" {
				got = append(got, v.Key+"="+string(v.Value))
			}
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
