package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/explain"
	"berth/internal/source/manifest"
)

// statusInvalidManifest is the STATUS of a rejected manifest.
const statusInvalidManifest = "InvalidManifest"

// podRows returns the table of the pods with kubectl's columns and a header, followed by the
// rejected manifests.
func podRows(pods []*v1.Pod, problems []manifest.Problem, now time.Time) [][]string {
	namespaced := severalNamespaces(pods)
	cells := func(r podRow) []string {
		cells := []string{r.Name, r.Ready, r.Status, r.Restarts, r.Age}
		if namespaced {
			cells = slices.Insert(cells, 0, r.Namespace)
		}
		return cells
	}
	rows := [][]string{cells(podRow{Namespace: "NAMESPACE", Name: "NAME", Ready: "READY", Status: "STATUS", Restarts: "RESTARTS", Age: "AGE"})}
	for _, p := range pods {
		rows = append(rows, cells(computePodRow(p, now)))
	}
	for _, r := range refusedRows(problems, now) {
		rows = append(rows, cells(r))
	}
	return rows
}

// refusedRows returns one row per file with a rejected manifest.
func refusedRows(problems []manifest.Problem, now time.Time) []podRow {
	var rows []podRow
	var last string
	for _, p := range problems { // ordered by path
		if p.Severity != manifest.SeverityError || p.Path == last {
			continue
		}
		last = p.Path
		rows = append(rows, podRow{
			Namespace: "-", Name: explain.OneLine(filepath.Base(p.Path)), Ready: "-", Status: statusInvalidManifest, Restarts: "-",
			Age: formatAge(metav1.NewTime(p.Since), now),
		})
	}
	return rows
}

// problemLine describes a manifest error in one line.
func problemLine(p manifest.Problem) string {
	where := explain.OneLine(filepath.Base(p.Path))
	if p.Document > 1 {
		where = fmt.Sprintf("%s (document %d)", where, p.Document)
	}
	if p.Severity == manifest.SeverityWarning {
		where += ": warning"
	}
	return where + ": " + explain.OneLine(p.Message)
}

func severalNamespaces(pods []*v1.Pod) bool {
	return slices.ContainsFunc(pods, func(p *v1.Pod) bool { return p.Namespace != pods[0].Namespace })
}
