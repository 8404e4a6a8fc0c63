package cri

import (
	"testing"

	"github.com/containerd/containerd/api/types"
)

func TestUpperDir(t *testing.T) {
	overlay := func(options ...string) *types.Mount {
		return &types.Mount{Type: "overlay", Source: "overlay", Options: options}
	}
	for name, tt := range map[string]struct {
		mounts []*types.Mount
		want   string
	}{
		"no mounts":     {nil, ""},
		"a layer":       {[]*types.Mount{overlay("index=off", "workdir=/s/1/work", "upperdir=/s/1/fs", "lowerdir=/s/0/fs")}, "/s/1/fs"},
		"a view":        {[]*types.Mount{overlay("lowerdir=/s/1/fs:/s/0/fs")}, ""},
		"no overlay":    {[]*types.Mount{{Type: "bind", Source: "/s/1/fs", Options: []string{"rw", "rbind", "upperdir=/x"}}}, ""},
		"after another": {[]*types.Mount{{Type: "bind"}, overlay("upperdir=/s/2/fs")}, "/s/2/fs"},
	} {
		if got := upperDir(tt.mounts); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}
