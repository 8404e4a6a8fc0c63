package config

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"

	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// pathFields are the fields with paths on the host. In a file they are relative to the file's
// directory.
var pathFields = []string{
	"staticPodPath",
	"podLogsDir",
	"tlsCertFile",
	"tlsPrivateKeyFile",
	"authentication.x509.clientCAFile",
	"resolvConf",
	"volumePluginDir",
}

// dropInExtension is the suffix of files below --config-dir; others are ignored.
const dropInExtension = ".conf"

// readFile reads a configuration file. Warnings report what is ignored: as in the kubelet, unknown
// fields and duplicate keys do not prevent a node from starting. path is absolute.
func readFile(path string) (doc document, warnings []string, errs []error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, []error{err} // names operation and path
	}
	doc, warnings, errs = parse(content)
	for i := range warnings {
		warnings[i] = path + ": " + warnings[i]
	}
	for i := range errs {
		errs[i] = fmt.Errorf("%s: %w", path, errs[i])
	}
	if len(errs) > 0 {
		return nil, warnings, errs
	}
	dir := filepath.Dir(path)
	for _, field := range pathFields {
		if p, ok := fieldAt(doc, field); ok {
			if p, ok := p.(string); ok && p != "" && !filepath.IsAbs(p) {
				setField(doc, field, filepath.Join(dir, p))
			}
		}
	}
	return doc, warnings, nil
}

// needed describes the minimum content of a file.
const needed = "it needs at least the lines \"apiVersion: " + APIVersion + "\" and \"kind: " + Kind + "\""

// parse parses the content of a configuration file, YAML or JSON.
func parse(content []byte) (doc document, warnings []string, errs []error) {
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content)))
	first, err := nextDocument(documents)
	if err != nil {
		return nil, nil, []error{err}
	}
	if len(first) == 0 {
		return nil, nil, []error{errors.New("the file is empty; " + needed)}
	}
	if second, err := nextDocument(documents); err != nil || len(second) > 0 {
		warnings = append(warnings, "the file has several documents; only the first is read")
	}
	asJSON, err := yaml.YAMLToJSONStrict(first)
	if err != nil {
		doubled := err
		if asJSON, err = yaml.YAMLToJSON(first); err != nil {
			return nil, nil, []error{fmt.Errorf("not YAML: %w", err)}
		}
		warnings = append(warnings, oneLine(doubled)+": the last one holds")
	}
	var value any
	if err := kjson.UnmarshalCaseSensitivePreserveInts(asJSON, &value); err != nil {
		return nil, nil, []error{fmt.Errorf("not JSON: %w", err)}
	}
	doc, ok := value.(document)
	if !ok {
		return nil, nil, []error{errors.New("the file is no map of fields; " + needed)}
	}
	for _, f := range []struct{ name, want string }{{"apiVersion", APIVersion}, {"kind", Kind}} {
		if err := requireField(doc, f.name, f.want); err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		return nil, warnings, errs // it may be another kind of file, so its fields are not checked
	}
	unknown, wrong := checkTypes(doc)
	for _, u := range unknown {
		warnings = append(warnings, fmt.Sprintf("%v (ignored)", u))
	}
	return doc, warnings, wrong
}

// oneLine joins a multi-line error of the YAML parser into one line.
func oneLine(err error) string {
	text := strings.TrimPrefix(strings.TrimPrefix(err.Error(), "yaml: "), "unmarshal errors:")
	return strings.Join(strings.Fields(text), " ")
}

// nextDocument returns the next non-empty document, or nil.
func nextDocument(documents *utilyaml.YAMLReader) ([]byte, error) {
	for {
		d, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("not YAML: %w", err)
		}
		if len(bytes.TrimSpace(d)) > 0 {
			return d, nil
		}
	}
}

func requireField(doc document, name, want string) error {
	switch got := doc[name]; got {
	case want:
		return nil
	case nil:
		return fmt.Errorf("%s: missing; write \"%s: %s\"", name, name, want)
	default:
		return fmt.Errorf("%s: %v is not supported; write \"%s: %s\"", name, got, name, want)
	}
}

// dropIns returns the drop-in files below the directory in lexical order of their paths.
func dropIns(dir string) ([]string, error) {
	var files []string
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if !entry.IsDir() && strings.HasSuffix(entry.Name(), dropInExtension) {
			files = append(files, path)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("--config-dir: %w", err)
	}
	return files, nil
}

// visitFields calls leaf for each value that is set, with lists as a whole.
func visitFields(doc document, leaf func(path string, value any)) {
	visitor{
		list:    func(reflect.Type) bool { return false },
		unknown: func(string, string, []string) {},
		leaf:    func(path string, value any, _ reflect.Type) { leaf(path, value) },
	}.visit(doc, configurationType, "")
}
