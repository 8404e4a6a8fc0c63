package config

import (
	"fmt"
	"strings"
)

// Group is the heading of flags in the help.
type Group string

// The groups, in the order of the help.
const (
	ConfigurationGroup Group = "Configuration"
	ClusterGroup       Group = "API server and certificates"
	NodeGroup          Group = "Node"
	HostGroup          Group = "Host and container runtime"
	LoggingGroup       Group = "Logging"
	FieldGroup         Group = "Fields of the configuration file (deprecated: set the field instead)"
	NoEffectGroup      Group = "Accepted without effect"
)

// Groups returns the groups in the order of the help.
func Groups() []Group {
	return []Group{ConfigurationGroup, ClusterGroup, NodeGroup, HostGroup, LoggingGroup, FieldGroup, NoEffectGroup}
}

// Flag is one flag and its values. It implements flag.Value and pflag.Value.
type Flag struct {
	Name string
	// Shorthand is its one-letter form, or "".
	Shorthand string
	Group     Group
	// Usage is one sentence, in lower case and without a period.
	Usage string
	// Field is the path of the field that the flag sets, or "".
	Field string

	kind     kind
	fallback string   // the default, as text
	given    []string // as on the command line
	value    any      // parsed from given, as in JSON
	variable string   // the environment variable that set it, "" for the command line
}

// SetFrom sets the flag from an environment variable.
func (f *Flag) SetFrom(variable, s string) error {
	f.variable = variable
	return f.Set(s)
}

// FromVariable reports whether an environment variable set the flag.
func (f *Flag) FromVariable() bool { return f.variable != "" }

// Set adds one occurrence of the flag.
func (f *Flag) Set(s string) error {
	given := append(f.given[:len(f.given):len(f.given)], s)
	value, err := f.kind.parse(given)
	if err != nil {
		return err
	}
	f.given, f.value = given, value
	return nil
}

// String returns the flag's values, or its default.
func (f *Flag) String() string {
	if f.given == nil {
		return f.fallback
	}
	return strings.Join(f.given, ",")
}

// Type returns the name of the value's type.
func (f *Flag) Type() string { return f.kind.name }

// IsBoolFlag reports whether the flag may be used without a value, which sets it to true.
func (f *Flag) IsBoolFlag() bool {
	return f.kind.name == boolKind.name || f.kind.name == versionKind.name
}

// IsSet reports whether the flag was set.
func (f *Flag) IsSet() bool { return f.given != nil }

// Default returns the flag's default as text, "" for none.
func (f *Flag) Default() string { return f.fallback }

// Flags are the flags of `berth kubelet` with their values.
type Flags struct {
	flags []*Flag
	named map[string]*Flag
}

// NewFlags returns the flags with no values set.
func NewFlags() *Flags {
	legacy := KubeletConfiguration{}
	setLegacyDefaults(&legacy)
	defaults, err := toDocument(&legacy)
	if err != nil {
		panic(fmt.Sprintf("defaults of the configuration: %v", err)) // a constant that cannot be encoded
	}
	fs := &Flags{named: map[string]*Flag{}}
	for _, f := range flagTable() {
		if value, ok := fieldAt(defaults, f.Field); ok && f.fallback == "" {
			f.fallback = defaultText(value)
		}
		fs.flags = append(fs.flags, &f)
		fs.named[f.Name] = &f
	}
	return fs
}

// defaultText returns a default as it is written on the command line, and "" for a trivial one.
func defaultText(value any) string {
	switch v := value.(type) {
	case bool:
		if !v {
			return ""
		}
	case document:
		return ""
	case []any:
		texts := make([]string, len(v))
		for i := range v {
			texts[i] = fmt.Sprint(v[i])
		}
		return strings.Join(texts, ",")
	}
	return fmt.Sprint(value)
}

// All returns the flags, ordered by group.
func (fs *Flags) All() []*Flag { return fs.flags }

// Version returns the value of --version (VersionRaw for all build information), "" if it is not
// set.
func (fs *Flags) Version() string {
	switch v := fs.named["version"].value.(type) {
	case bool:
		if v {
			return "true"
		}
	case string:
		return v
	}
	return ""
}

// text returns the value or default of a text flag that is not a field.
func (fs *Flags) text(name string) string {
	f := fs.named[name]
	if s, ok := f.value.(string); ok {
		return s
	}
	return f.fallback
}
