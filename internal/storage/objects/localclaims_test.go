package objects

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

func localClaim(name, volume string) *v1.PersistentVolumeClaim {
	c := &v1.PersistentVolumeClaim{}
	c.Namespace, c.Name, c.Spec.VolumeName = "ns", name, volume
	return c
}

// localVolume is for the claim of that name, or for any if it is "".
func localVolume(name, claim string) *v1.PersistentVolume {
	v := &v1.PersistentVolume{}
	v.Name = name
	if claim != "" {
		v.Spec.ClaimRef = &v1.ObjectReference{Namespace: "ns", Name: claim}
	}
	return v
}

func TestLocalClaimsAreBoundByName(t *testing.T) {
	l := newLocal()
	l.Set(Defined{
		Claims:  []*v1.PersistentVolumeClaim{localClaim("by-claim", "a"), localClaim("late", "a"), localClaim("by-volume", ""), localClaim("loose", ""), localClaim("lost", "none")},
		Volumes: []*v1.PersistentVolume{localVolume("a", ""), localVolume("b", "by-volume"), localVolume("c", "")},
	})
	for _, tt := range []struct{ claim, volume, owner, err string }{
		{claim: "by-claim", volume: "a", owner: "by-claim"},
		{claim: "late", volume: "a", owner: "by-claim"}, // which the volume's reader then sees
		{claim: "by-volume", volume: "b", owner: "by-volume"},
		{claim: "loose", err: "it is bound to no volume: name a PersistentVolume of a manifest under its spec.volumeName"},
		{claim: "lost", volume: "none", err: `persistentvolume "none" not found`},
		{claim: "no", err: `persistentvolumeclaim "no" not found`},
	} {
		c, err := l.GetPersistentVolumeClaim(t.Context(), "ns", tt.claim)
		var v *v1.PersistentVolume
		if err == nil {
			if c.Status.Phase != v1.ClaimBound || c.Spec.VolumeName != tt.volume {
				t.Errorf("%s is %s, bound to %q", tt.claim, c.Status.Phase, c.Spec.VolumeName)
			}
			v, err = l.GetPersistentVolume(t.Context(), c.Spec.VolumeName)
		}
		switch {
		case (err == nil) != (tt.err == "") || err != nil && err.Error() != tt.err:
			t.Errorf("%s: %v, want %s", tt.claim, err, tt.err)
		case err == nil && v.Spec.ClaimRef.Name != tt.owner:
			t.Errorf("%s: the volume is bound to %s", tt.claim, v.Spec.ClaimRef.Name)
		}
	}
	if _, err := l.GetPersistentVolumeClaim(t.Context(), "elsewhere", "by-claim"); !apierrors.IsNotFound(err) {
		t.Errorf("in another namespace: %v", err)
	}
}

// A pod that waits for its claim, or for what stands behind it, is told of both.
func TestLocalTellsPodsOfVolumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocal()
		p := podWith("waits", nil, nil)
		p.Spec.Volumes = []v1.Volume{{VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}
		l.Register(p)
		l.Register(podWith("other", nil, nil))
		claims := []*v1.PersistentVolumeClaim{localClaim("c", "")}
		for i, d := range []Defined{
			{Claims: claims},
			{Claims: claims, Volumes: []*v1.PersistentVolume{localVolume("a", "c")}},
			{Claims: claims},
		} {
			l.Set(d)
			if got := fmt.Sprint(told(l)); got != "[waits]" {
				t.Errorf("step %d: told %s", i, got)
			}
		}
		l.Unregister(p.UID)
		l.Set(Defined{})
		if got := told(l); !slices.Equal(got, nil) {
			t.Errorf("a pod that is gone is told: %v", got)
		}
	})
}
