package images

import "testing"

func TestLocationMatches(t *testing.T) {
	tests := []struct {
		pattern, image string
		want           bool
	}{
		{"registry.example", "registry.example/team/app:1", true},
		{"registry.example/", "registry.example/team/app:1", true},
		{"https://registry.example", "registry.example/team/app:1", true},
		{"https://registry.example/v1/", "registry.example/team/app", true},
		{"registry.example/v2/team", "registry.example/team/app", true},
		{"REGISTRY.example", "registry.example/app", true},
		{"registry.example/team", "registry.example/team/app@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", true},
		{"registry.example/team/app", "registry.example/team", false},
		{"registry.example/other", "registry.example/team/app", false},
		{"registry.example:5000", "registry.example:5000/app", true},
		{"registry.example", "registry.example:5000/app", false},
		{"registry.example:5000", "registry.example/app", false},
		{"registry.example:5000", "registry.example:5001/app", false},
		{"*.example", "registry.example/app", true},
		{"*.example", "a.registry.example/app", false},
		{"*.*.example", "a.registry.example/app", true},
		{"app*.registry.io", "app7.registry.io/x", true},
		{"app*.registry.io", "web.registry.io/x", false},
		{"registry.*", "registry.io/x", true},
		{"*", "registry.io/x", false},
		{"registry.example/*", "registry.example/x", false},
		{"[::1]:5000", "[::1]:5000/x", true},
		{"127.0.0.1:5000", "127.0.0.1:5000/x", true},
		{"https://index.docker.io/v1/", "nginx", true},
		{"index.docker.io", "library/nginx:1", true},
		{"docker.io", "docker.io/library/nginx", true},
		{"docker.io/library/nginx", "nginx:1", true},
		{"docker.io/other", "nginx:1", false},
		{"docker.io", "registry.example/nginx", false},
	}
	for _, tt := range tests {
		n, err := parseName(tt.image)
		if err != nil {
			t.Fatal(err)
		}
		l, err := parseLocation(tt.pattern)
		if err != nil {
			t.Fatal(err)
		}
		if got := l.matches(locate(n.full)); got != tt.want {
			t.Errorf("%q matches %q: %v, want %v", tt.pattern, tt.image, got, tt.want)
		}
	}
	for _, bad := range []string{"", "/team", "https://", "a..b", "[a.example", "registry.[a"} {
		if l, err := parseLocation(bad); err == nil {
			t.Errorf("%q is taken for %v", bad, l)
		}
	}
}

func TestRepository(t *testing.T) {
	const digest = "@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	for image, want := range map[string]string{
		"nginx": "nginx", "nginx:1": "nginx", "localhost:5000/a": "localhost:5000/a", "localhost:5000/a:b" + digest: "localhost:5000/a", "r.example/a" + digest: "r.example/a",
	} {
		if n, err := parseName(image); err != nil || n.repository != want {
			t.Errorf("repository of %q is %q, %v; want %q", image, n.repository, err, want)
		}
	}
}
