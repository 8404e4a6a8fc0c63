package config

import (
	"fmt"
	"strings"
)

// Group is a heading under which flags are shown.
type Group string

// The groups, in the order in which they are shown.
const (
	ConfigurationGroup Group = "Configuration"
	ClusterGroup       Group = "API server and certificates"
	NodeGroup          Group = "Node"
	HostGroup          Group = "Host and container runtime"
	LoggingGroup       Group = "Logging"
	FieldGroup         Group = "Fields of the configuration file (deprecated: set the field instead)"
	NoEffectGroup      Group = "Accepted without effect"
)

// Groups are the groups in the order in which they are shown.
func Groups() []Group {
	return []Group{ConfigurationGroup, ClusterGroup, NodeGroup, HostGroup, LoggingGroup, FieldGroup, NoEffectGroup}
}

// Flag is one flag and the values that it was given. It is a flag.Value and a pflag.Value.
type Flag struct {
	Name string
	// Shorthand is its letter, or "".
	Shorthand string
	Group     Group
	// Usage is one sentence, in lower case and without a full stop.
	Usage string
	// Field is the path of the field that the flag sets, or "".
	Field string

	kind     kind
	fallback string   // the default, as text
	given    []string // as on the command line
	value    any      // of all that was given, as in JSON
	variable string   // the environment variable that it was given by, "" for the command line
}

// SetFrom takes the value of an environment variable that stands for the flag.
func (f *Flag) SetFrom(variable, s string) error {
	f.variable = variable
	return f.Set(s)
}

// FromVariable reports whether an environment variable has given the flag.
func (f *Flag) FromVariable() bool { return f.variable != "" }

// Set takes one occurrence of the flag.
func (f *Flag) Set(s string) error {
	given := append(f.given[:len(f.given):len(f.given)], s)
	value, err := f.kind.parse(given)
	if err != nil {
		return err
	}
	f.given, f.value = given, value
	return nil
}

// String returns what the flag was given, or its default.
func (f *Flag) String() string {
	if f.given == nil {
		return f.fallback
	}
	return strings.Join(f.given, ",")
}

// Type names the form of the value.
func (f *Flag) Type() string { return f.kind.name }

// IsBoolFlag reports whether the flag may stand without a value, and is true then.
func (f *Flag) IsBoolFlag() bool {
	return f.kind.name == boolKind.name || f.kind.name == versionKind.name
}

// IsSet reports whether the flag was given.
func (f *Flag) IsSet() bool { return f.given != nil }

// Default returns the flag's default as text, "" for none.
func (f *Flag) Default() string { return f.fallback }

// Flags are the flags of `berth kubelet`, and what a command line gave them.
type Flags struct {
	flags []*Flag
	named map[string]*Flag
}

// NewFlags returns the flags with nothing given.
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

// defaultText returns a default as one would write it after the flag, and "" for what goes without
// saying.
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

// All returns the flags in the order of the groups.
func (fs *Flags) All() []*Flag { return fs.flags }

// Version returns whether --version asks for the version (VersionRaw: for all that is known), "" if
// not.
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

// text returns the value of a flag of text that is no field, or its default.
func (fs *Flags) text(name string) string {
	f := fs.named[name]
	if s, ok := f.value.(string); ok {
		return s
	}
	return f.fallback
}
