package crispec

import (
	"errors"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// EnvFileLimit is the maximum size of an environment file in bytes.
const EnvFileLimit = 64 << 10

// EnvFile is an environment file in a volume of the pod (KEP-3721).
type EnvFile struct{ Volume, Path string }

// EnvFiles returns the environment files of the container, without duplicates.
func EnvFiles(c *v1.Container) []EnvFile {
	var out []EnvFile
	seen := map[EnvFile]bool{}
	for i := range c.Env {
		if from := c.Env[i].ValueFrom; from != nil && from.FileKeyRef != nil {
			if f := (EnvFile{from.FileKeyRef.VolumeName, from.FileKeyRef.Path}); !seen[f] {
				seen[f] = true
				out = append(out, f)
			}
		}
	}
	return out
}

// fileValue returns the value of the key in a file; an empty value counts as missing.
func fileValue(in Container, ref *v1.FileKeySelector) (string, bool, error) {
	content, exists := in.Environment.Files[EnvFile{ref.VolumeName, ref.Path}]
	if !exists {
		if isTrue(ref.Optional) {
			return "", false, nil
		}
		return "", false, fmt.Errorf("file %q of volume %q not found", ref.Path, ref.VolumeName)
	}
	values, err := parseEnvFile(string(content))
	if err != nil {
		return "", false, fmt.Errorf("file %q of volume %q: %w", ref.Path, ref.VolumeName, err)
	}
	if value := values[ref.Key]; value != "" {
		return value, true, nil
	}
	if isTrue(ref.Optional) {
		return "", false, nil
	}
	return "", false, fmt.Errorf("couldn't find key %q in file %q of volume %q", ref.Key, ref.Path, ref.VolumeName)
}

// parseEnvFile parses NAME='value' declarations, the last of the same name taking effect
// (Kubernetes documentation, "Define Environment Variable Values Using An Init Container"). It only
// accepts what a shell parses in the same way: values are in single quotes, may span lines, and are
// literal; whitespace before a name, blank lines, and lines that begin with # are skipped. Its
// errors do not quote the file, which may contain secrets.
func parseEnvFile(text string) (map[string]string, error) {
	values := map[string]string{}
	for line := 1; text != ""; {
		name, value, rest, err := parseDeclaration(text)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		if name != "" {
			values[name] = value
		}
		line += strings.Count(text[:len(text)-len(rest)], "\n")
		text = rest
	}
	return values, nil
}

const blank = " \t"

// parseDeclaration parses the declaration at the beginning of the text, to the end of its last
// line; name is "" if there is none.
func parseDeclaration(text string) (name, value, rest string, err error) {
	line, after, _ := strings.Cut(text, "\n")
	line = strings.TrimLeft(line, blank)
	if strings.Trim(line, blank) == "" || line[0] == '#' {
		return "", "", after, nil
	}
	name, quoted, ok := strings.Cut(line, "=")
	if !ok || name == "" || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' || r == '\'' || r == '"' }) {
		return "", "", "", errors.New("want NAME='value', without spaces around the equals sign")
	}
	switch {
	case quoted == "" || strings.ContainsRune(blank, rune(quoted[0])):
		return name, "", after, nil // as in a shell, the value ends before the space
	case quoted[0] != '\'':
		return "", "", "", errors.New("the value is not in single quotes")
	}
	// The value may span lines.
	_, quoted, _ = strings.Cut(text, "='")
	value, rest, ok = strings.Cut(quoted, "'")
	if !ok {
		return "", "", "", errors.New("the value lacks its closing quote")
	}
	if strings.ContainsRune(value, 0) {
		return "", "", "", errors.New("the value has a null character, which no variable can have")
	}
	tail, rest, _ := strings.Cut(rest, "\n")
	if strings.Trim(tail, blank) != "" {
		return "", "", "", errors.New("there is more after the value's closing quote")
	}
	return name, value, rest, nil
}
