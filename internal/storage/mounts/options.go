package mounts

import (
	"strings"

	"golang.org/x/sys/unix"
)

// binding is the kind of a bind mount; 0 is none.
type binding int

const (
	bindOne binding = iota + 1 // without the mounts below
	bindAll
)

func (b binding) recursive() uint {
	if b == bindAll {
		return unix.AT_RECURSIVE
	}
	return 0
}

// options are options of mount(8), split into those of the mount and of the filesystem.
type options struct {
	bind binding
	// flags are the mount flags of mount(2).
	flags uintptr
	// ofFilesystem are keys and values for the filesystem.
	ofFilesystem [][2]string
}

// ofMount has the options of a mount rather than of its filesystem: the flags that they set and
// clear (mount(8)).
var ofMount = map[string]struct{ set, clear uintptr }{
	"nosuid": {set: unix.MS_NOSUID}, "suid": {clear: unix.MS_NOSUID},
	"nodev": {set: unix.MS_NODEV}, "dev": {clear: unix.MS_NODEV},
	"noexec": {set: unix.MS_NOEXEC}, "exec": {clear: unix.MS_NOEXEC},
	"noatime": {set: unix.MS_NOATIME}, "atime": {clear: unix.MS_NOATIME},
	"nodiratime": {set: unix.MS_NODIRATIME}, "diratime": {clear: unix.MS_NODIRATIME},
	"relatime": {set: unix.MS_RELATIME}, "norelatime": {clear: unix.MS_RELATIME},
	"strictatime": {set: unix.MS_STRICTATIME}, "nostrictatime": {clear: unix.MS_STRICTATIME},
	"nosymfollow": {set: unix.MS_NOSYMFOLLOW}, "symfollow": {clear: unix.MS_NOSYMFOLLOW},
}

// forPeople are options for programs that read fstab(5); they are ignored.
var forPeople = map[string]bool{
	"defaults": true, "auto": true, "noauto": true, "user": true, "nouser": true, "users": true, "owner": true, "group": true, "_netdev": true,
	"nofail": true,
}

// parseOptions parses options; an element may have several, separated by commas.
func parseOptions(all []string) options {
	var o options
	for _, element := range all {
		for _, option := range splitOptions(element) {
			o.add(option)
		}
	}
	return o
}

func (o *options) add(option string) {
	key, value, _ := strings.Cut(option, "=")
	kept, ok := ofMount[option]
	switch {
	case option == "" || forPeople[key] || key == "comment" || strings.HasPrefix(key, "x-") || strings.HasPrefix(key, "X-"):
	case option == "bind":
		o.bind = max(o.bind, bindOne)
	case option == "rbind":
		o.bind = bindAll
	case ok:
		o.flags = o.flags&^kept.clear | kept.set
	case option == "ro":
		o.flags |= unix.MS_RDONLY
	case option == "rw":
		o.flags &^= unix.MS_RDONLY
	default:
		o.ofFilesystem = append(o.ofFilesystem, [2]string{key, strings.Trim(value, `"`)})
	}
}

// splitOptions splits at commas outside of quotation marks: an SELinux context has commas.
func splitOptions(s string) []string {
	quoted := false
	return strings.FieldsFunc(s, func(r rune) bool {
		if r == '"' {
			quoted = !quoted
		}
		return r == ',' && !quoted
	})
}
