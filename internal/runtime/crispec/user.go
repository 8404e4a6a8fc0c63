package crispec

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/pod"
)

// Errors of a container with runAsNonRoot that would run as root.
var (
	ErrRunAsRoot      = errors.New("container's runAsUser breaks non-root policy")
	ErrImageRunAsRoot = errors.New("container has runAsNonRoot and image will run as root")
)

// imageUserNameError is an image's user name that may be root.
type imageUserNameError string

func (name imageUserNameError) Error() string {
	return fmt.Sprintf("container has runAsNonRoot and image has non-numeric user (%s), cannot verify user is non-root", string(name))
}

// ExplainNonRoot returns the values for which ContainerConfig rejected a container with
// runAsNonRoot, and which field to set; "" for any other error.
func ExplainNonRoot(in Container, err error) string {
	p, c := in.Pod, in.Container
	asker, setter := "pod", "pod"
	if sc := c.SecurityContext; sc != nil && sc.RunAsNonRoot != nil {
		asker = "container"
	}
	if sc := c.SecurityContext; sc != nil && sc.RunAsUser != nil {
		setter = "container"
	}
	rule := fmt.Sprintf("runAsNonRoot is true in the securityContext of the %s", asker)
	const set = "set securityContext.runAsUser to a uid other than 0"
	var name imageUserNameError
	switch {
	case errors.Is(err, ErrRunAsRoot):
		return fmt.Sprintf("runAsUser is 0 in the securityContext of the %s, and %s: %s", setter, rule, set)
	case errors.As(err, &name):
		return fmt.Sprintf("image %q runs as user %q, which is no number and may be root's, and %s: set securityContext.runAsUser to the uid that %s has in the image, or build it with a numeric USER",
			c.Image, string(name), rule, string(name))
	case !errors.Is(err, ErrImageRunAsRoot):
		return ""
	case in.User.UID != nil:
		return fmt.Sprintf("image %q runs as uid %d, and %s: %s, or build the image with such a USER", c.Image, *in.User.UID, rule, set)
	case runAsGroup(p, c) != nil:
		return fmt.Sprintf("image %q has no USER, runAsGroup needs one, and that is uid 0; %s: %s", c.Image, rule, set)
	}
	return fmt.Sprintf("image %q has no USER, which is uid 0, and %s: %s, or build the image with such a USER", c.Image, rule, set)
}

const (
	// maxUID is the highest user ID that Kubernetes and the runtimes accept. Higher ones could be
	// truncated to another user, even root.
	maxUID = math.MaxInt32
	// maxUserName is the maximum length of a user name (LOGIN_NAME_MAX of limits.h).
	maxUserName = 256
)

// ImageUser is the user in an image's configuration; the zero value is an image without one.
type ImageUser struct {
	UID  *int64 // numeric user, if it has one
	Name string // otherwise the user's name, if it has one
}

// check rejects invalid users: images are not trusted.
func (u ImageUser) check() error {
	switch {
	case u.UID != nil && (*u.UID < 0 || *u.UID > maxUID):
		return fmt.Errorf("the image's user %d is no user id: these are 0 to %d; set runAsUser or mend the image's USER", *u.UID, maxUID)
	case u.UID != nil:
	case len(u.Name) > maxUserName:
		return fmt.Errorf("the name of the image's user has %d bytes: at most %d are a name; set runAsUser or mend the image's USER", len(u.Name), maxUserName)
	case !utf8.ValidString(u.Name), strings.ContainsFunc(u.Name, func(r rune) bool { return r == ':' || unicode.IsSpace(r) || !unicode.IsPrint(r) }):
		return fmt.Errorf("the image's user %q is no name of a user; set runAsUser or mend the image's USER", u.Name)
	}
	return nil
}

// setUser sets the container's user: runAsUser of container or pod, else the image's user. It is
// set explicitly so that it remains the user that runAsNonRoot was checked for, even if the image
// name is reassigned.
func setUser(in Container, out *runtimeapi.LinuxContainerSecurityContext) error {
	p, c := in.Pod, in.Container
	out.RunAsGroup = int64Value(runAsGroup(p, c))
	if uid := RunAsUser(p, c); uid != nil {
		if runAsNonRoot(p, c) && *uid == 0 {
			return aboutUser(p, c, ErrRunAsRoot)
		}
		out.RunAsUser = int64Value(uid)
		return nil
	}
	u := in.User
	if err := u.check(); err != nil {
		return err
	}
	if u.UID == nil && u.Name == "" && out.RunAsGroup != nil {
		u.UID = new(int64) // the runtime accepts no group without a user
	}
	if runAsNonRoot(p, c) {
		switch {
		case u.UID == nil && u.Name != "":
			return aboutUser(p, c, imageUserNameError(u.Name))
		case u.UID == nil, *u.UID == 0:
			return aboutUser(p, c, ErrImageRunAsRoot)
		}
	}
	out.RunAsUser = int64Value(u.UID)
	if u.UID == nil {
		out.RunAsUsername = u.Name
	}
	return nil
}

func aboutUser(p *v1.Pod, c *v1.Container, err error) error {
	return fmt.Errorf("%w (pod: %q, container: %s)", err, pod.Describe(p), c.Name)
}

func runAsNonRoot(p *v1.Pod, c *v1.Container) bool {
	if c.SecurityContext != nil && c.SecurityContext.RunAsNonRoot != nil {
		return *c.SecurityContext.RunAsNonRoot
	}
	return p.Spec.SecurityContext != nil && isTrue(p.Spec.SecurityContext.RunAsNonRoot)
}

// RunAsUser returns the user in the pod's spec for the container, nil for the image's.
func RunAsUser(p *v1.Pod, c *v1.Container) *int64 {
	if c.SecurityContext != nil && c.SecurityContext.RunAsUser != nil {
		return c.SecurityContext.RunAsUser
	}
	if p.Spec.SecurityContext != nil {
		return p.Spec.SecurityContext.RunAsUser
	}
	return nil
}

func runAsGroup(p *v1.Pod, c *v1.Container) *int64 {
	if c.SecurityContext != nil && c.SecurityContext.RunAsGroup != nil {
		return c.SecurityContext.RunAsGroup
	}
	if p.Spec.SecurityContext != nil {
		return p.Spec.SecurityContext.RunAsGroup
	}
	return nil
}

// supplementalGroups returns the supplemental groups of the pod's processes: first the fsGroup.
func supplementalGroups(p *v1.Pod, volumes []int64) []int64 {
	var out []int64
	if sc := p.Spec.SecurityContext; sc != nil {
		if sc.FSGroup != nil {
			out = append(out, *sc.FSGroup)
		}
		out = append(out, sc.SupplementalGroups...)
	}
	for _, gid := range volumes {
		if !slices.Contains(out, gid) {
			out = append(out, gid)
		}
	}
	return out
}

func groupsPolicy(sc *v1.PodSecurityContext) runtimeapi.SupplementalGroupsPolicy {
	if sc.SupplementalGroupsPolicy != nil && *sc.SupplementalGroupsPolicy == v1.SupplementalGroupsPolicyStrict {
		return runtimeapi.SupplementalGroupsPolicy_Strict
	}
	return runtimeapi.SupplementalGroupsPolicy_Merge
}

func int64Value(v *int64) *runtimeapi.Int64Value {
	if v == nil {
		return nil
	}
	return &runtimeapi.Int64Value{Value: *v}
}
