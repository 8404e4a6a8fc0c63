package config

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
)

// kind is the type of a flag's values.
type kind struct {
	name string
	// parse converts all occurrences of the flag to the value of its field, as in JSON.
	parse func(given []string) (any, error)
}

// The kinds. If a flag has one value, the last occurrence applies; lists and maps accumulate.
var (
	textKind = kind{"string", last(func(s string) (any, error) { return s, nil })}
	boolKind = kind{"bool", last(func(s string) (any, error) {
		b, err := strconv.ParseBool(s)
		if err != nil {
			return nil, fmt.Errorf("%q is neither true nor false", s)
		}
		return b, nil
	})}
	int32Kind = kind{"int32", last(integer(32))}
	int64Kind = kind{"int", last(integer(64))}
	levelKind = kind{"int", last(func(s string) (any, error) {
		n, err := strconv.ParseUint(s, 10, 31)
		if err != nil {
			return nil, fmt.Errorf("%q is no level: give a number from 0", s)
		}
		return int64(n), nil
	})}
	durationKind = kind{"duration", last(func(s string) (any, error) {
		d, err := time.ParseDuration(s)
		if err != nil {
			return nil, fmt.Errorf(`%q is no duration, such as "30s", "5m" or "1h30m"`, s)
		}
		return d.String(), nil
	})}
	quantityKind = kind{"quantity", last(func(s string) (any, error) {
		if _, err := resource.ParseQuantity(s); err != nil {
			return nil, fmt.Errorf(`%q is no quantity, such as "10Mi"`, s)
		}
		return s, nil
	})}
	// pathKind is a path on the host, relative to the working directory.
	pathKind = kind{"path", last(func(s string) (any, error) {
		if s == "" {
			return "", nil
		}
		return filepath.Abs(s)
	})}

	listKind       = kind{"list", parseList}
	mapKind        = kind{"key=value,…", parseMap("=", func(s string) (any, error) { return s, nil })}
	thresholdsKind = kind{"signal<quantity,…", parseMap("<", func(s string) (any, error) { return s, nil })}
	gatesKind      = kind{"key=true|false,…", parseMap("=", func(s string) (any, error) {
		b, err := strconv.ParseBool(s)
		if err != nil {
			return nil, fmt.Errorf("%q is neither true nor false", s)
		}
		return b, nil
	})}
	headersKind        = kind{"name:value,…", parseHeaders}
	taintsKind         = kind{"key=value:effect,…", parseTaints}
	reservedMemoryKind = kind{"node:type=quantity,…", parseReservedMemory}
	vmoduleKind        = kind{"pattern=N,…", parseVModule}
	versionKind        = kind{"true|raw", last(func(s string) (any, error) {
		if s == VersionRaw {
			return s, nil
		}
		return boolKind.parse([]string{s})
	})}
)

// VersionRaw is the value of --version for all build information.
const VersionRaw = "raw"

func last(parse func(string) (any, error)) func([]string) (any, error) {
	return func(given []string) (any, error) { return parse(given[len(given)-1]) }
}

func integer(bits int) func(string) (any, error) {
	return func(s string) (any, error) {
		n, err := strconv.ParseInt(s, 10, bits)
		if err != nil {
			return nil, fmt.Errorf("%q is no integer of %d bits", s, bits)
		}
		return n, nil
	}
}

func parseList(given []string) (any, error) {
	values := []any{}
	for item := range items(given, ",") {
		values = append(values, item)
	}
	return values, nil
}

// parseMap parses pairs, each with sep between key and value.
func parseMap(sep string, parse func(string) (any, error)) func([]string) (any, error) {
	return func(given []string) (any, error) {
		values := document{}
		for item := range items(given, ",") {
			key, value, ok := strings.Cut(item, sep)
			if key = strings.TrimSpace(key); !ok || key == "" {
				return nil, fmt.Errorf("%q has no %q between a key and a value", item, sep)
			}
			v, err := parse(strings.TrimSpace(value))
			if err != nil {
				return nil, fmt.Errorf("%s: %w", key, err)
			}
			values[key] = v
		}
		return values, nil
	}
}

func parseHeaders(given []string) (any, error) {
	values := document{}
	n := 0
	for item := range items(given, ",") {
		n++
		name, value, ok := strings.Cut(item, ":")
		if name = strings.TrimSpace(name); !ok || name == "" {
			// The item may be a token and must not be shown.
			return nil, fmt.Errorf(`header %d has no ":" between a name and a value`, n)
		}
		before, _ := values[name].([]any)
		values[name] = append(before, strings.TrimSpace(value))
	}
	return values, nil
}

func parseTaints(given []string) (any, error) {
	values := []any{}
	for item := range items(given, ",") {
		what, effect, ok := strings.Cut(item, ":")
		key, value, _ := strings.Cut(what, "=")
		if !ok || key == "" {
			return nil, fmt.Errorf("%q is no taint: write key=value:effect or key:effect", item)
		}
		taint := document{"key": key, "effect": effect}
		if value != "" {
			taint["value"] = value
		}
		values = append(values, taint)
	}
	return values, nil
}

func parseReservedMemory(given []string) (any, error) {
	values := []any{}
	for item := range items(given, ";") {
		node, limits, ok := strings.Cut(item, ":")
		n, err := strconv.ParseInt(node, 10, 32)
		if !ok || err != nil {
			return nil, fmt.Errorf("%q does not begin with the number of a NUMA node and a colon, such as 0:memory=1Gi", item)
		}
		parsed, err := mapKind.parse([]string{limits})
		if err != nil {
			return nil, err
		}
		for name, q := range parsed.(document) {
			if _, err := resource.ParseQuantity(q.(string)); err != nil {
				return nil, fmt.Errorf(`%s: %q is no quantity, such as "1Gi"`, name, q)
			}
		}
		values = append(values, document{"numaNode": n, "limits": parsed})
	}
	return values, nil
}

func parseVModule(given []string) (any, error) {
	values := []any{}
	for item := range items(given, ",") {
		pattern, level, _ := strings.Cut(item, "=")
		n, err := strconv.ParseUint(level, 10, 31)
		if pattern == "" || err != nil {
			return nil, fmt.Errorf("%q is no pattern=N", item)
		}
		values = append(values, document{"filePattern": pattern, "verbosity": int64(n)})
	}
	return values, nil
}

// items yields the non-empty items between separators.
func items(given []string, sep string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for _, g := range given {
			for item := range strings.SplitSeq(g, sep) {
				if item = strings.TrimSpace(item); item != "" && !yield(item) {
					return
				}
			}
		}
	}
}
