package machine_test

import (
	"strings"
	"testing"

	"berth/internal/resources/machine"
	"berth/internal/resources/machine/machinetest"
)

func TestOffline(t *testing.T) {
	type files = map[string]string
	const cpu = "sys/devices/system/cpu/"
	tests := []struct {
		name  string
		known string
		files files // "" removes the file
		want  string
		err   string
	}{
		{"none", "laptop", nil, "", ""},
		{"some", "offline", nil, "0,3,11-12,15", ""},
		{"a node", "idle node", nil, "2-3,6-7", ""},
		{"room for more CPUs", "laptop", files{cpu + "possible": "0-63", cpu + "offline": "8-63"}, "", ""},
		{"not told", "offline", files{cpu + "present": ""}, "", ""},
		{"present is no list", "laptop", files{cpu + "present": "all"}, "", `cpu/present: "all" is no list of numbers`},
		{"online is gone", "laptop", files{cpu + "online": ""}, "", "cpu/online: file does not exist"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tree := machinetest.Known[tt.known].Tree()
			change(tree, tt.files)
			got, err := machine.Offline(tree)
			if tt.err != "" {
				if err == nil || !strings.HasSuffix(err.Error(), tt.err) || !strings.HasPrefix(err.Error(), "read which CPUs are offline: ") {
					t.Errorf("Offline: %v, want an error that ends in %q", err, tt.err)
				}
				return
			}
			if err != nil || got.String() != tt.want {
				t.Errorf("Offline = %q, %v, want %q", got, err, tt.want)
			}
		})
	}
}
