package iptables

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Host is this machine, in the network namespace of this process.
type Host struct{}

// Run runs a program of the host, also from sbin directories that are not in PATH.
func (Host) Run(ctx context.Context, program string, args ...string) (string, error) {
	name, err := exec.LookPath(program)
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if err != nil {
			name, err = exec.LookPath(filepath.Join(dir, program))
		}
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", program, exec.ErrNotFound)
	}
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	return string(out), err
}

// Follow reads the kernel's notifications of nftables, in which iptables-nft stores its tables.
func (h Host) Follow(ctx context.Context, names []string, deleted func()) error {
	version, err := h.Run(ctx, "iptables", "--version")
	if err == nil && !strings.Contains(version, "nf_tables") {
		return ErrNoEvents
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	socket := os.NewFile(uintptr(fd), "netlink")
	defer socket.Close()
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, unix.NFNLGRP_NFTABLES); err != nil {
		return fmt.Errorf("netlink: messages of nftables: %w", err)
	}
	defer context.AfterFunc(ctx, func() { socket.Close() })()
	buffer := make([]byte, 64<<10) // the maximum size of the kernel's messages
	for {
		n, err := socket.Read(buffer)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, unix.ENOBUFS): // messages were lost
			deleted()
		case err != nil:
			return fmt.Errorf("netlink: %w", err)
		case concerns(buffer[:n], names):
			deleted()
		}
	}
}

// Message types of nftables (linux/netfilter/nf_tables.h, enum nf_tables_msg_types).
const (
	deleteTable = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_DELTABLE
	deleteChain = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_DELCHAIN
	deleteRule  = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_DELRULE
)

// concerns reports whether the messages contain the deletion of a table, or of a chain or rule with
// one of the names. Names in attributes are zero-terminated (netlink(7)).
func concerns(messages []byte, names []string) bool {
	for len(messages) >= unix.SizeofNlMsghdr {
		length := int(binary.NativeEndian.Uint32(messages))
		if length < unix.SizeofNlMsghdr || length > len(messages) {
			return false
		}
		switch kind := binary.NativeEndian.Uint16(messages[4:]); kind {
		case deleteTable:
			return true
		case deleteChain, deleteRule:
			for _, name := range names {
				if bytes.Contains(messages[:length], append([]byte(name), 0)) {
					return true
				}
			}
		}
		messages = messages[min(len(messages), (length+3)&^3):]
	}
	return false
}
