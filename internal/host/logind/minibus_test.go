package logind

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/godbus/dbus/v5"
)

// miniBus is the little of a message bus that these tests need, for machines without dbus-daemon:
// it routes calls by name, and signals to everybody.
type miniBus struct {
	mu      sync.Mutex
	clients map[string]*client // guarded by mu; by unique name
	owners  map[string]string  // guarded by mu
}

type client struct {
	conn *net.UnixConn
	name string
	oob  []byte
	mu   sync.Mutex // held while a message is written
}

// startMiniBus runs a bus within the test.
func startMiniBus(t *testing.T) (address string, stop func()) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "bus")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	b := &miniBus{clients: map[string]*client{}, owners: map[string]string{}}
	var served sync.WaitGroup
	served.Go(func() {
		for n := 0; ; n++ {
			conn, err := l.AcceptUnix()
			if err != nil {
				return
			}
			c := &client{conn: conn, name: fmt.Sprintf(":1.%d", n)}
			b.mu.Lock()
			b.clients[c.name] = c
			b.mu.Unlock()
			served.Go(func() { b.serve(c) })
		}
	})
	stop = sync.OnceFunc(func() {
		l.Close()
		b.mu.Lock()
		for _, c := range b.clients {
			c.conn.Close()
		}
		b.mu.Unlock()
		served.Wait()
	})
	t.Cleanup(stop)
	return "unix:path=" + socket, stop
}

func (b *miniBus) serve(c *client) {
	defer c.conn.Close()
	if c.authenticate() != nil {
		return
	}
	for {
		m, err := c.read()
		if err != nil {
			return
		}
		m.Headers[dbus.FieldSender] = dbus.MakeVariant(c.name)
		b.route(c, m)
	}
}

// authenticate lets everybody in (D-Bus specification, "Authentication Protocol").
func (c *client) authenticate() error {
	for {
		line, err := c.readLine()
		if err != nil {
			return err
		}
		answer := "ERROR\r\n"
		switch line = strings.TrimSpace(strings.TrimPrefix(line, "\x00")); {
		case line == "AUTH":
			answer = "REJECTED EXTERNAL\r\n"
		case strings.HasPrefix(line, "AUTH EXTERNAL"):
			answer = "OK 0123456789abcdef0123456789abcdef\r\n"
		case line == "NEGOTIATE_UNIX_FD":
			answer = "AGREE_UNIX_FD\r\n"
		case line == "BEGIN":
			return nil
		}
		if _, err := io.WriteString(c.conn, answer); err != nil {
			return err
		}
	}
}

// readLine reads no further than the end of the line: messages follow.
func (c *client) readLine() (string, error) {
	var line []byte
	for b := []byte{0}; b[0] != '\n'; line = append(line, b[0]) {
		if _, err := c.conn.Read(b); err != nil {
			return "", err
		}
	}
	return string(line), nil
}

// Read implements io.Reader, and keeps descriptors that come along.
func (c *client) Read(b []byte) (int, error) {
	oob := make([]byte, 256)
	n, oobn, _, _, err := c.conn.ReadMsgUnix(b, oob)
	c.oob = append(c.oob, oob[:oobn]...)
	if n == 0 && err == nil {
		err = io.EOF
	}
	return n, err
}

func (c *client) read() (*dbus.Message, error) {
	c.oob = nil
	head := make([]byte, 16)
	if _, err := io.ReadFull(c, head); err != nil {
		return nil, err
	}
	fields := (binary.LittleEndian.Uint32(head[12:]) + 7) / 8 * 8
	rest := make([]byte, fields+binary.LittleEndian.Uint32(head[4:]))
	if _, err := io.ReadFull(c, rest); err != nil {
		return nil, err
	}
	var fds []int
	if controls, err := syscall.ParseSocketControlMessage(c.oob); err == nil && len(controls) > 0 {
		fds, _ = syscall.ParseUnixRights(&controls[0])
	}
	m, err := dbus.DecodeMessageWithFDs(bytes.NewReader(append(head, rest...)), fds)
	if err != nil {
		return nil, err
	}
	for i, v := range m.Body {
		if at, ok := v.(dbus.UnixFDIndex); ok && int(at) < len(fds) {
			m.Body[i] = dbus.UnixFD(fds[at])
		}
	}
	return m, nil
}

func (c *client) write(m *dbus.Message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var b bytes.Buffer
	fds, err := m.EncodeToWithFDs(&b, binary.LittleEndian)
	if err != nil {
		return
	}
	var oob []byte
	if len(fds) > 0 {
		oob = syscall.UnixRights(fds...)
	}
	_, _, _ = c.conn.WriteMsgUnix(b.Bytes(), oob, nil)
	for _, fd := range fds {
		_ = syscall.Close(fd)
	}
}

func (b *miniBus) route(from *client, m *dbus.Message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	to, _ := m.Headers[dbus.FieldDestination].Value().(string)
	switch {
	case to == "org.freedesktop.DBus":
		b.answerLocked(from, m)
	case to == "": // a signal
		for _, c := range b.clients {
			c.write(m)
		}
	default:
		if owner, ok := b.owners[to]; ok {
			to = owner
			m.Headers[dbus.FieldDestination] = dbus.MakeVariant(to) // a client knows itself by that
		}
		if c := b.clients[to]; c != nil {
			c.write(m)
		}
	}
}

// answerLocked answers a call of the bus itself.
func (b *miniBus) answerLocked(from *client, m *dbus.Message) {
	answer := &dbus.Message{Type: dbus.TypeMethodReply, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldReplySerial: dbus.MakeVariant(m.Serial()), dbus.FieldSender: dbus.MakeVariant("org.freedesktop.DBus"),
		dbus.FieldDestination: dbus.MakeVariant(from.name),
	}}
	switch m.Headers[dbus.FieldMember].Value() {
	case "Hello":
		answer.Body = []any{from.name}
	case "RequestName":
		b.owners[m.Body[0].(string)] = from.name
		answer.Body = []any{uint32(1)}
	case "GetNameOwner":
		answer.Body = []any{b.owners[m.Body[0].(string)]}
	}
	if len(answer.Body) > 0 {
		answer.Headers[dbus.FieldSignature] = dbus.MakeVariant(dbus.SignatureOf(answer.Body...))
	}
	from.write(answer)
}
