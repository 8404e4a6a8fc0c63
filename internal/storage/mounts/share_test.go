package mounts

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	mount "k8s.io/mount-utils"
)

func TestComputePlace(t *testing.T) {
	private := mount.MountInfo{ID: 1, MountPoint: "/"}
	host := mount.MountInfo{ID: 1, MountPoint: "/", OptionalFields: []string{"shared:1"}}
	slave := mount.MountInfo{ID: 1, MountPoint: "/", OptionalFields: []string{"master:1"}}
	both := mount.MountInfo{ID: 1, MountPoint: "/", OptionalFields: []string{"shared:2", "master:1"}}
	own := mount.MountInfo{ID: 2, Root: "/", MountPoint: "/var/lib/berth"}
	bound := mount.MountInfo{ID: 2, Root: "/@/lib/berth", MountPoint: "/var/lib/berth", OptionalFields: []string{"shared:3"}}
	volume := mount.MountInfo{ID: 3, MountPoint: "/var/lib/berth/pods/a/v"}
	beside := mount.MountInfo{ID: 4, MountPoint: "/var/lib/berth2/v"}
	for name, tc := range map[string]struct {
		id    int
		table []mount.MountInfo
		want  place
	}{
		"private":                  {1, []mount.MountInfo{private, beside}, place{}},
		"shared":                   {1, []mount.MountInfo{host}, place{shared: true}},
		"slave":                    {1, []mount.MountInfo{slave}, place{}},
		"slave and shared":         {1, []mount.MountInfo{both}, place{shared: true}},
		"of its own":               {2, []mount.MountInfo{host, own}, place{own: true}},
		"mounted on itself":        {2, []mount.MountInfo{private, bound}, place{own: true, itself: true, shared: true}},
		"with volumes":             {1, []mount.MountInfo{private, volume}, place{below: []string{volume.MountPoint}}},
		"of its own, with volumes": {2, []mount.MountInfo{private, volume, own, beside}, place{own: true, below: []string{volume.MountPoint}}},
	} {
		tc.want.path = "/var/lib/berth"
		got, err := computePlace("/var/lib/berth", tc.id, tc.table)
		if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(place{})); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
	}
	if _, err := computePlace("/var/lib/berth", 9, []mount.MountInfo{private}); err == nil {
		t.Error("a mount that is not in the table was found")
	}
}
