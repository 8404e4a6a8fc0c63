package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/api/server"
	"berth/internal/source/manifest"
)

// statusInvalidManifest stands in the STATUS column of a manifest that became no pod.
const statusInvalidManifest = "InvalidManifest"

// podColumns says which columns a table of pods has besides kubectl's five.
type podColumns struct {
	namespace, wide, noHeader bool
	labels                    bool
	labelColumns              []string      // names of labels
	pulls                     []server.Pull // under way when the pods were listed
}

func (c podColumns) header() []string {
	h := []string{"NAME", "READY", "STATUS", "RESTARTS", "AGE"}
	if c.namespace {
		h = slices.Insert(h, 0, "NAMESPACE")
	}
	if c.wide {
		h = append(h, "IP", "NODE", "NOMINATED NODE", "READINESS GATES")
	}
	h = append(h, labelTitles(c.labelColumns)...)
	if c.labels {
		h = append(h, "LABELS")
	}
	return h
}

// cells returns the columns of a row; of is the labels that columns may show.
func (c podColumns) cells(r podRow, of map[string]string) []string {
	cells := []string{r.Name, r.Ready, r.Status, r.Restarts, r.Age}
	if c.namespace {
		cells = slices.Insert(cells, 0, r.Namespace)
	}
	if c.wide {
		cells = append(cells, r.IP, r.Node, r.NominatedNode, r.ReadinessGates)
	}
	cells = append(cells, labelCells(c.labelColumns, of)...)
	if c.labels {
		cells = append(cells, r.Labels)
	}
	return cells
}

// rows returns the table of the pods and, below them, of the manifests that were refused.
func (c podColumns) rows(pods []*v1.Pod, problems []manifest.Problem, now time.Time) [][]string {
	var rows [][]string
	if !c.noHeader {
		rows = append(rows, c.header())
	}
	for _, p := range pods {
		r := computePodRow(p, now)
		r.Status += server.PullMark(server.PullsOf(c.pulls, p.UID))
		rows = append(rows, c.cells(r, p.Labels))
	}
	for _, r := range refusedRows(problems, now) {
		rows = append(rows, c.cells(r, nil))
	}
	return rows
}

// refusedRows returns one row per file that has a refused manifest.
func refusedRows(problems []manifest.Problem, now time.Time) []podRow {
	var rows []podRow
	var last string
	for _, p := range problems { // ordered by path
		if p.Severity != manifest.SeverityError || p.Path == last {
			continue
		}
		last = p.Path
		rows = append(rows, podRow{
			Namespace: "-", Name: oneLine(filepath.Base(p.Path)), Ready: "-", Status: statusInvalidManifest, Restarts: "-",
			Age: formatAge(metav1.NewTime(p.Since), now), IP: "-", Node: "-", NominatedNode: "-", ReadinessGates: "-", Labels: "-",
		})
	}
	return rows
}

// problemLine says in one line what is wrong with a manifest.
func problemLine(p manifest.Problem) string {
	where := oneLine(filepath.Base(p.Path))
	if p.Document > 1 {
		where = fmt.Sprintf("%s (document %d)", where, p.Document)
	}
	if p.Severity == manifest.SeverityWarning {
		where += ": warning"
	}
	return where + ": " + oneLine(p.Message)
}

// severalNamespaces reports whether the pods are of more than one namespace.
func severalNamespaces(pods []*v1.Pod) bool {
	return slices.ContainsFunc(pods, func(p *v1.Pod) bool { return p.Namespace != pods[0].Namespace })
}
