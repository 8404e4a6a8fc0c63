package negotiate_test

import (
	"testing"

	"berth/internal/api/negotiate"
)

func TestChoose(t *testing.T) {
	offered := []string{"application/json", "application/yaml", "text/plain"}
	for _, c := range []struct{ accept, want string }{
		{"", "application/json"},
		{"*/*", "application/json"},
		{"text/*", "text/plain"},
		{"application/*", "application/json"},
		{"application/yaml", "application/yaml"},
		{"application/json;q=0.1, application/yaml;q=0.2", "application/yaml"},
		{"*/*, application/yaml", "application/yaml"},
		{"application/yaml;as=Table, text/plain", "text/plain"},
		{"application/cbor, application/json", "application/json"},
		{"application/cbor", ""},
		{"*/*;as=Table", ""},
		{";;", ""},
	} {
		got, ok := negotiate.Choose(c.accept, offered, func(_ string, params map[string]string) bool { return params["as"] == "" })
		if got != c.want || ok != (c.want != "") {
			t.Errorf("%q: got %q, %t, want %q", c.accept, got, ok, c.want)
		}
	}
}
