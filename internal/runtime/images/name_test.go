package images

import "testing"

func TestParseName(t *testing.T) {
	const digest = "@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	tests := map[string]string{ // "" means refused
		"nginx":                         "nginx:latest",
		"library/nginx":                 "library/nginx:latest",
		"localhost:5000/a":              "localhost:5000/a:latest",
		"[::1]:5000/a":                  "[::1]:5000/a:latest",
		"nginx:1.29":                    "nginx:1.29",
		"r.example/a/b_c--d:v1":         "r.example/a/b_c--d:v1",
		"nginx" + digest:                "nginx" + digest,
		"nginx:1.29" + digest:           "nginx:1.29" + digest,
		"":                              "",
		"Nginx":                         "",
		"nginx:":                        "",
		"nginx@sha256:12":               "",
		" nginx":                        "",
		"https://r.example/nginx":       "",
		digest[len("@sha256:"):]:        "",
		"r.example/../nginx":            "",
		"r.example/a:v1:v2":             "",
		"r.example/a" + digest + digest: "",
	}
	for in, want := range tests {
		n, err := parseName(in)
		got := n.image
		if got != want || (err == nil) != (want != "") {
			t.Errorf("parseName(%q) = %q, %v; want %q", in, got, err, want)
		}
	}
}
