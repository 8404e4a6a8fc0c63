package config

import (
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestFieldsAreThePublishedOnes compares KubeletConfiguration with testdata/v1beta1.fields, the
// fields of the published type of k8s.io/kubelet v0.36.3, listed by listFields over that type:
// path, form, and whether an empty value is left out.
func TestFieldsAreThePublishedOnes(t *testing.T) {
	published, err := os.ReadFile("testdata/v1beta1.fields")
	if err != nil {
		t.Fatal(err)
	}
	own := listFields(reflect.TypeFor[KubeletConfiguration](), "")
	slices.Sort(own)
	if diff := cmp.Diff(strings.Split(strings.TrimSpace(string(published)), "\n"), own); diff != "" {
		t.Errorf("fields (-published +own):\n%s", diff)
	}
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

// form names a type as the list of published fields does.
func form(t reflect.Type) string {
	switch t.String() {
	case "v1.Duration":
		return "duration"
	case "config.TimeOrDuration":
		return "durationOrNanoseconds"
	case "resource.Quantity":
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
