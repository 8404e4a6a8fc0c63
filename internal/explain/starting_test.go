package explain

import "testing"

// A failed pull is reported without the name of the image, which stands beside it.
func TestPullCause(t *testing.T) {
	for message, want := range map[string]string{
		`failed to pull and unpack image "r.example/a:1": failed to resolve reference "r.example/a:1": r.example/a:1: not found`:                                                                              "not found",
		`Failed to pull image "a": failed to pull and unpack image "docker.io/library/a:latest": failed to resolve image: docker.io/library/a:latest: not found`:                                              "not found",
		`the name of the registry r.example cannot be looked up (failed to pull and unpack image "r.example/a:1": failed to resolve reference "r.example/a:1": failed to do request: dial tcp: no such host)`: "the name of the registry r.example cannot be looked up (failed to do request: dial tcp: no such host)",
		`Container image "a" is not present with pull policy of Never`:                                                                                                                                        `Container image "a" is not present with pull policy of Never`,
		"pull QPS exceeded": "pull QPS exceeded",
	} {
		if got := pullCause(message); got != want {
			t.Errorf("%s: %q, want %q", message, got, want)
		}
	}
}
