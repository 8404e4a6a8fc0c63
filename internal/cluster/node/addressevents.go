package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// watchAddresses calls changed after this machine's addresses or routes may have changed, until ctx
// is done. It may call changed when nothing has changed.
func watchAddresses(ctx context.Context, changed func()) error {
	f, err := openAddressEvents()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = f.Close() }) // unblocks the read
	defer stop()
	changed()                  // changes before the subscription
	buf := make([]byte, 1<<16) // larger than any datagram
	for ctx.Err() == nil {
		if err := readAddressEvents(f, buf, changed); err != nil && ctx.Err() == nil {
			return errors.Join(err, f.Close())
		}
	}
	return ctx.Err()
}

// openAddressEvents subscribes to changes of addresses and routes (rtnetlink(7)), of the network
// namespace of the calling thread.
func openAddressEvents() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("events of addresses: %w", err)
	}
	f := os.NewFile(uintptr(fd), "netlink")
	groups := uint32(unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR | unix.RTMGRP_IPV4_ROUTE | unix.RTMGRP_IPV6_ROUTE)
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		return nil, errors.Join(fmt.Errorf("events of addresses: %w", err), f.Close())
	}
	return f, nil
}

// readAddressEvents reads the next datagram of events into the buffer, and calls changed if an
// event is relevant.
func readAddressEvents(f *os.File, buf []byte, changed func()) error {
	n, err := f.Read(buf)
	if errors.Is(err, unix.ENOBUFS) { // events were lost
		changed()
		return nil
	}
	if err != nil {
		return fmt.Errorf("events of addresses: %w", err)
	}
	messages, err := syscall.ParseNetlinkMessage(buf[:n])
	if err != nil {
		return fmt.Errorf("events of addresses: %w", err)
	}
	for _, m := range messages {
		if mayMove(m) {
			changed()
			return nil
		}
	}
	return nil
}

// mayMove reports whether an event may change the node's address. Link-local addresses and the IPv6
// routes to them, which change with the interfaces of pods, do not.
func mayMove(m syscall.NetlinkMessage) bool {
	switch m.Header.Type {
	case unix.RTM_NEWADDR, unix.RTM_DELADDR: // struct ifaddrmsg: family, length of prefix, flags, scope
		return len(m.Data) >= unix.SizeofIfAddrmsg && m.Data[3] == unix.RT_SCOPE_UNIVERSE
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE: // struct rtmsg: family, length of destination
		return len(m.Data) >= unix.SizeofRtMsg && (m.Data[0] == unix.AF_INET || m.Data[1] == 0)
	}
	return false
}
