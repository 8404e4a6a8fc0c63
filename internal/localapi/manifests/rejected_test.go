package manifests

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"berth/internal/pod"
	"berth/internal/source/manifest"
)

// Each file with a refused manifest is one pod, which nobody runs, and says all that is wrong.
func TestRejectedPods(t *testing.T) {
	of := func(source pod.Source, path, name string, severity manifest.Severity, message string) manifest.Problem {
		return manifest.Problem{Source: source, Path: path, Name: name, Severity: severity, Message: message}
	}
	var got []string
	for _, o := range RejectedPods([]manifest.Problem{
		of(pod.FileSource, "/m/web.yaml", "", manifest.SeverityError, "no kind"),
		of(pod.FileSource, "/m/web.yaml", "db", manifest.SeverityError, "no image"),
		of(pod.FileSource, "/m/odd.yaml", "odd", manifest.SeverityWarning, "odd"),
		of(pod.FileSource, "/n/web.yaml", "", manifest.SeverityError, "empty"),
		of(pod.HTTPSource, "https://example.com/pods", "", manifest.SeverityError, "404"),
		of(pod.APISource, "API server", "x", manifest.SeverityError, "no UID"),
	}) {
		p := o.Object.(*v1.Pod)
		if p.Spec.NodeName != "" || p.Namespace != "default" || p.Status.Phase != v1.PodPending || p.Status.Reason != "InvalidManifest" {
			t.Errorf("pod %+v", p)
		}
		got = append(got, fmt.Sprintf("%s of %s: %s", p.Name, o.Path, p.Status.Message))
	}
	want := []string{
		"web.yaml of /m/web.yaml: no kind; default/db: no image",
		"web.yaml-eb162a1a of /n/web.yaml: empty",
		"pods of https://example.com/pods: 404",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Any name of a file gives one that a pod may have.
func TestPodNames(t *testing.T) {
	for file, want := range map[string]string{
		"web.yaml": "web.yaml", "Web_1.YAML": "web-1.yaml", "..-x-.-y..": "x.y", "---": "manifest", "": "manifest", "ä": "manifest",
		strings.Repeat("a", 300): strings.Repeat("a", 244),
	} {
		got := podName(file)
		if got != want || len(validation.IsDNS1123Subdomain(got)) > 0 {
			t.Errorf("podName(%q) = %q, want %q", file, got, want)
		}
	}
}
