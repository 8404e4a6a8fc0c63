package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
)

// published is the published type of the configuration. Tests alone link it: docs/dependencies.md
// has what it costs.
var published = reflect.TypeFor[kubeletconfig.KubeletConfiguration]()

// TestFieldsAreThePublishedOnes compares KubeletConfiguration with the published type: path, form,
// and whether an empty value is left out.
func TestFieldsAreThePublishedOnes(t *testing.T) {
	want, own := listFields(published, ""), listFields(reflect.TypeFor[KubeletConfiguration](), "")
	slices.Sort(want)
	slices.Sort(own)
	if diff := cmp.Diff(want, own); diff != "" {
		t.Errorf("fields (-published +own):\n%s", diff)
	}
}

// publishedLeaves are the paths of the published fields that hold values, and no others below.
func publishedLeaves() []string {
	var paths []string
	for _, line := range listFields(published, "") {
		path, form, _ := strings.Cut(line, " ")
		if form, _, _ := strings.Cut(form, " "); !strings.HasSuffix(form, "struct") {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	return paths
}

func listFields(t reflect.Type, path string) []string {
	var lines []string
	for i := range t.NumField() {
		f := t.Field(i)
		name, option, hasOption := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" {
			lines = append(lines, listFields(f.Type, path)...)
			continue
		}
		at := join(path, name)
		line := at + " " + form(f.Type)
		if hasOption {
			line += " " + option
		}
		lines = append(lines, line)
		element := f.Type
		below := at
		for element.Kind() == reflect.Pointer || element.Kind() == reflect.Slice {
			if element.Kind() == reflect.Slice {
				below = at + "[]"
			}
			element = element.Elem()
		}
		if form(element) == "struct" {
			lines = append(lines, listFields(element, below)...)
		}
	}
	return lines
}

// form names a type, whichever package declares it.
func form(t reflect.Type) string {
	switch t.String() {
	case "v1.Duration":
		return "duration"
	case "config.TimeOrDuration", "v1.TimeOrMetaDuration":
		return "durationOrNanoseconds"
	case "resource.Quantity", "resource.QuantityValue":
		return "quantity"
	case "v1.Taint":
		return "taint"
	case "v1.ResourceList":
		return "resourceList"
	}
	switch t.Kind() {
	case reflect.Pointer:
		return "*" + form(t.Elem())
	case reflect.Slice:
		return "[]" + form(t.Elem())
	case reflect.Map:
		return fmt.Sprintf("map[%s]%s", form(t.Key()), form(t.Elem()))
	}
	return t.Kind().String()
}
