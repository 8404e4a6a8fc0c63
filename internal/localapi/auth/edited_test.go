package auth

import (
	"os"
	"path/filepath"
	"testing"
)

// TestRulesEditedMeanwhile has somebody save the file while a rule is added: both are in it then.
func TestRulesEditedMeanwhile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "access.yaml")
	const byHand = "# by hand\nrules:\n  - users: [a]\n    verbs: [get]\n    resources: [nodes]\n"
	r := Rule{Users: []string{"ci"}, Verbs: []string{"get"}, Resources: []string{"pods"}}
	calls := 0
	err := changeRules(path, func(content []byte, _ Rules) ([]byte, error) {
		if calls++; calls == 1 {
			if err := os.WriteFile(path, []byte(byHand), 0o600); err != nil {
				return nil, err
			}
		}
		return withRule(content, r)
	})
	if err != nil || calls != 2 {
		t.Errorf("%d calls, %v", calls, err)
	}
	got, err := os.ReadFile(path)
	if want := byHand + "  - users: [ci]\n    verbs: [get]\n    resources: [pods]\n"; err != nil || string(got) != want {
		t.Errorf("%v, got\n%s", err, got)
	}
}
