package docker

import (
	"net/http"
	"testing"
)

func TestRedirected(t *testing.T) {
	to := func(url string, from *http.Request) *http.Request {
		req, err := http.NewRequest(http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		if from != nil {
			req.Response = &http.Response{Request: from}
		}
		return req
	}
	asked := to("https://registry.example/v2/a", nil)
	elsewhere := to("https://blobs.example/a", asked)
	for name, tt := range map[string]struct {
		req  *http.Request
		want bool
	}{
		"asked":                 {asked, false},
		"elsewhere":             {elsewhere, true},
		"further":               {to("https://blobs.example/b", elsewhere), true},
		"other port":            {to("https://registry.example:444/v2/a", asked), true},
		"other path":            {to("https://registry.example/v2/b", asked), false},
		"elsewhere and back":    {to("https://registry.example/v2/b", elsewhere), false},
		"elsewhere, then other": {to("https://more.example/a", elsewhere), true},
	} {
		if got := redirected(tt.req); got != tt.want {
			t.Errorf("%s: redirected is %v, want %v", name, got, tt.want)
		}
	}
}
