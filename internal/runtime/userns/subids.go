package userns

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"time"
)

const (
	// owner is the user whose subordinate IDs are used for pods (Kubernetes documentation, "User
	// Namespaces": setting up a node).
	owner = "kubelet"
	// getsubidsLimit is the timeout of getsubids, which may query a directory service.
	getsubidsLimit = 30 * time.Second
)

// hostSubids reads the subordinate IDs of the user kubelet. Without that user or getsubids, the
// host has none configured.
func hostSubids() (Range, bool, error) {
	var unknown user.UnknownUserError
	if _, err := user.Lookup(owner); errors.As(err, &unknown) {
		return Range{}, false, nil
	} else if err != nil {
		return Range{}, false, err
	}
	program, err := exec.LookPath("getsubids")
	if errors.Is(err, exec.ErrNotFound) {
		return Range{}, false, nil
	}
	if err != nil {
		return Range{}, false, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), getsubidsLimit)
	defer cancel()
	users, err := output(ctx, program, owner)
	if err != nil {
		return Range{}, false, err
	}
	groups, err := output(ctx, program, "-g", owner)
	if err != nil {
		return Range{}, false, err
	}
	if users != groups {
		return Range{}, false, fmt.Errorf("those of users and groups differ (%q, %q); make /etc/subuid and /etc/subgid the same", users, groups)
	}
	r, err := parseSubids(users)
	return r, err == nil, err
}

func output(ctx context.Context, program string, args ...string) (string, error) {
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", cmd, err, bytes.TrimSpace(stderr.Bytes()))
	}
	return strings.TrimSpace(string(out)), nil
}

// parseSubids parses the output of getsubids: "0: kubelet 65536 7208960".
func parseSubids(line string) (Range, error) {
	if strings.Contains(line, "\n") {
		return Range{}, errors.New("there is more than one range; leave one in /etc/subuid and /etc/subgid")
	}
	fields := strings.Fields(line)
	if len(fields) != 4 || fields[1] != owner {
		return Range{}, fmt.Errorf("getsubids says %q, which is not understood", line)
	}
	first, err := strconv.ParseUint(fields[2], 10, 32)
	if err != nil {
		return Range{}, fmt.Errorf("getsubids says %q: %w", line, err)
	}
	length, err := strconv.ParseUint(fields[3], 10, 32)
	if err != nil {
		return Range{}, fmt.Errorf("getsubids says %q: %w", line, err)
	}
	if first+length > 1<<32 {
		return Range{}, fmt.Errorf("getsubids says %q, which is beyond the highest id", line)
	}
	return Range{First: uint32(first), Length: uint32(length)}, nil
}
