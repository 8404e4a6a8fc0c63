package crispec

import (
	"math"
	"strconv"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/record/events/messagestest"
)

// Images are made by anybody: who they say they run as must not become somebody else on the way to
// the kernel.
func TestImageUser(t *testing.T) {
	id := func(n int64) ImageUser { return ImageUser{UID: &n} }
	for _, tc := range []struct {
		name  string
		image ImageUser
		uid   string // of the runtime's request; "" for none
		user  string
		err   string
	}{
		{name: "no user"},
		{name: "root", image: id(0), uid: "0"},
		{name: "a number", image: id(1000), uid: "1000"},
		{name: "the highest number", image: id(math.MaxInt32), uid: "2147483647"},
		{name: "a number that 31 bits do not hold", image: id(math.MaxInt32 + 1), err: "no user id"},
		{name: "a number that is 0 in 32 bits", image: id(1 << 32), err: "no user id"},
		{name: "the highest of all", image: id(math.MaxInt64), err: "no user id"},
		{name: "a negative number", image: id(-1), err: "no user id"},
		{name: "the lowest of all", image: id(math.MinInt64), err: "no user id"},
		{name: "a name", image: ImageUser{Name: "nobody"}, user: "nobody"},
		{name: "a name of a directory service", image: ImageUser{Name: `DOMAIN\jörg$`}, user: `DOMAIN\jörg$`},
		{name: "a name of a mebibyte", image: ImageUser{Name: strings.Repeat("a", 1<<20)}, err: "has 1048576 bytes"},
		{name: "a name with a group", image: ImageUser{Name: "a:0"}, err: "is no name of a user"},
		{name: "a name of two lines", image: ImageUser{Name: "a\nroot::0:0::/:/bin/sh"}, err: "is no name of a user"},
		{name: "a name with a NUL", image: ImageUser{Name: "a\x00"}, err: "is no name of a user"},
		{name: "what is no text", image: ImageUser{Name: "\xff\xfe"}, err: "is no name of a user"},
	} {
		p := newPod()
		got, err := containerSecurity(Container{Pod: p, Container: &p.Spec.Containers[0], User: tc.image})
		switch {
		case tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)):
			t.Errorf("%s: got %v, want an error with %q", tc.name, err, tc.err)
		case tc.err != "" && len(err.Error()) > 1000:
			t.Errorf("%s: the error has %d bytes", tc.name, len(err.Error()))
		case tc.err == "" && err != nil:
			t.Errorf("%s: %v", tc.name, err)
		case tc.err == "" && (decimal(got.RunAsUser) != tc.uid || got.RunAsUsername != tc.user):
			t.Errorf("%s: got %v, %q", tc.name, got.RunAsUser, got.RunAsUsername)
		}
		// What the pod says holds, whatever the image says.
		uid := int64(7)
		p.Spec.SecurityContext = &v1.PodSecurityContext{RunAsUser: &uid}
		got, err = containerSecurity(Container{Pod: p, Container: &p.Spec.Containers[0], User: tc.image})
		if err != nil || got.RunAsUser.GetValue() != 7 || got.RunAsUsername != "" {
			t.Errorf("%s, and runAsUser: got %v, %v", tc.name, got, err)
		}
	}
}

func decimal(v *runtimeapi.Int64Value) string {
	if v == nil {
		return ""
	}
	return strconv.FormatInt(v.Value, 10)
}

func TestRunAsNonRoot(t *testing.T) {
	yes, zero, user := true, int64(0), int64(1000)
	must := func(uid *int64) *v1.Pod {
		return newPod(func(p *v1.Pod) {
			p.Spec.SecurityContext = &v1.PodSecurityContext{RunAsNonRoot: &yes, RunAsUser: uid}
		})
	}
	const about = ` (pod: "web_default(u)", container: c)`
	for _, tc := range []struct {
		name  string
		pod   *v1.Pod
		image ImageUser
		want  string
	}{
		{"not asked", newPod(), ImageUser{UID: &zero}, ""},
		{"explicit user", must(&user), ImageUser{UID: &zero}, ""},
		{"explicit root", must(&zero), ImageUser{UID: &user}, "container's runAsUser breaks non-root policy" + about},
		{"numeric image user", must(nil), ImageUser{UID: &user}, ""},
		{"root image", must(nil), ImageUser{UID: &zero}, "container has runAsNonRoot and image will run as root" + about},
		{"image without user", must(nil), ImageUser{}, "container has runAsNonRoot and image will run as root" + about},
		{"named image user", must(nil), ImageUser{Name: "nobody"}, "container has runAsNonRoot and image has non-numeric user (nobody), cannot verify user is non-root" + about},
	} {
		got := ""
		if _, err := containerSecurity(Container{Pod: tc.pod, Container: &tc.pod.Spec.Containers[0], User: tc.image}); err != nil {
			messagestest.SawError(err)
			got = err.Error()
		}
		if got != tc.want {
			t.Errorf("%s: got %q, want %q", tc.name, got, tc.want)
		}
	}
}

// What has a container refused that must not run as root is explained by its values.
func TestExplainNonRoot(t *testing.T) {
	yes, zero := true, int64(0)
	newContainer := func(pod, own *v1.SecurityContext, image ImageUser) Container {
		p := newPod(func(p *v1.Pod) {
			p.Spec.SecurityContext = &v1.PodSecurityContext{RunAsNonRoot: pod.RunAsNonRoot, RunAsUser: pod.RunAsUser, RunAsGroup: pod.RunAsGroup}
			p.Spec.Containers[0].SecurityContext, p.Spec.Containers[0].Image = own, "i"
		})
		return Container{Pod: p, Container: &p.Spec.Containers[0], User: image}
	}
	must := &v1.SecurityContext{RunAsNonRoot: &yes}
	const set = ": set securityContext.runAsUser to a uid other than 0"
	const ofPod = "runAsNonRoot is true in the securityContext of the pod"
	for name, tc := range map[string]struct {
		in   Container
		want string
	}{
		"root by the pod": {
			newContainer(&v1.SecurityContext{RunAsUser: &zero}, must, ImageUser{}),
			"runAsUser is 0 in the securityContext of the pod, and runAsNonRoot is true in the securityContext of the container" + set,
		},
		"root by the container": {
			newContainer(must, &v1.SecurityContext{RunAsUser: &zero}, ImageUser{}), "runAsUser is 0 in the securityContext of the container, and " + ofPod + set,
		},
		"image of root":      {newContainer(must, nil, ImageUser{UID: &zero}), `image "i" runs as uid 0, and ` + ofPod + set + ", or build the image with such a USER"},
		"image without user": {newContainer(must, nil, ImageUser{}), `image "i" has no USER, which is uid 0, and ` + ofPod + set + ", or build the image with such a USER"},
		"group without user": {
			newContainer(&v1.SecurityContext{RunAsNonRoot: &yes, RunAsGroup: &zero}, nil, ImageUser{}), `image "i" has no USER, runAsGroup needs one, and that is uid 0; ` + ofPod + set,
		},
		"named": {
			newContainer(must, nil, ImageUser{Name: "www"}),
			`image "i" runs as user "www", which is no number and may be root's, and ` + ofPod +
				": set securityContext.runAsUser to the uid that www has in the image, or build it with a numeric USER",
		},
		"no user at all": {newContainer(must, nil, ImageUser{Name: "a:b"}), ""},
	} {
		_, err := containerSecurity(tc.in)
		if got := ExplainNonRoot(tc.in, err); got != tc.want || err == nil {
			t.Errorf("%s: %v: got %q, want %q", name, err, got, tc.want)
		}
	}
}
