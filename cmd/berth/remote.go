package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"golang.org/x/term"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"

	"berth/internal/api/server"
)

// openStreams asks the agent for a connection of many streams, as kubectl and the API server do.
func (c *client) openStreams(ctx context.Context, path string, query url.Values, protocol string) (_ httpstream.Connection, err error) {
	u := url.URL{Scheme: "http", Host: "berth", Path: path, RawQuery: query.Encode()}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set(httpstream.HeaderConnection, httpstream.HeaderUpgrade)
	req.Header.Set(httpstream.HeaderUpgrade, spdy.HeaderSpdy31)
	req.Header.Set(httpstream.HeaderProtocolVersion, protocol)
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", server.SocketPath(c.runDir))
	if err != nil {
		return nil, c.explain(err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, conn.Close())
		}
	}()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if err := req.Write(conn); err != nil {
		return nil, c.explain(err)
	}
	in := bufio.NewReader(conn)
	resp, err := http.ReadResponse(in, req)
	if err != nil {
		return nil, c.explain(err)
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		text, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
		if err := errors.Join(err, resp.Body.Close()); err != nil {
			return nil, fmt.Errorf("read the agent's answer: %w", err)
		}
		return nil, &apiError{status: resp.StatusCode, message: cmp.Or(strings.TrimSpace(string(text)), resp.Status)}
	}
	return spdy.NewClientConnection(bufferedConn{conn, in})
}

// bufferedConn is a connection of which something was read already.
type bufferedConn struct {
	net.Conn
	in *bufio.Reader
}

func (c bufferedConn) Read(b []byte) (int, error) { return c.in.Read(b) }

// remote is our end of a program that runs in a container.
type remote struct {
	in          io.Reader // nil: none
	out, errOut io.Writer // errOut is nil on a terminal
	terminal    *os.File  // ours, whose size the remote one follows; nil: none
	redraw      bool      // the program has its screen already, and shows it anew only when the size changes
}

// query says which streams there will be, and that the program is on a terminal if it has but one
// output.
func (r remote) query() url.Values {
	q := url.Values{"output": {"1"}}
	if r.in != nil {
		q.Set("input", "1")
	}
	if r.errOut != nil {
		q.Set("error", "1")
	} else {
		q.Set("tty", "1")
	}
	return q
}

// run joins the streams until the program has ended, and returns its exit code as an error unless
// that is 0. It ends early with the cause of ctx, and with errDetached when the input says so.
func (r remote) run(ctx context.Context, conn httpstream.Connection) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	result, err := openStream(conn, v1.StreamTypeError)
	if err != nil {
		return err
	}
	var in, resize httpstream.Stream
	if r.in != nil {
		if in, err = openStream(conn, v1.StreamTypeStdin); err != nil {
			return err
		}
	}
	var output errgroup.Group
	for name, w := range map[string]io.Writer{v1.StreamTypeStdout: r.out, v1.StreamTypeStderr: r.errOut} {
		if w == nil {
			continue
		}
		stream, err := openStream(conn, name)
		if err != nil {
			return err
		}
		output.Go(func() error {
			_, err := io.Copy(w, stream)
			return err
		})
	}
	if r.errOut == nil { // the protocol has a stream for the size of every terminal, also of one that we do not show
		if resize, err = openStream(conn, v1.StreamTypeResize); err != nil {
			return err
		}
	}
	if r.terminal != nil {
		go r.followSize(ctx, resize)
	}
	if in != nil {
		go func() { // not waited for: it may be reading from a terminal
			// Ends with the input, or with the program, which says so itself.
			if _, err := io.Copy(in, r.in); errors.Is(err, errDetached) {
				cancel(errDetached)
				return
			}
			in.Close()
		}()
	}
	said, err := io.ReadAll(io.LimitReader(result, 64<<10))
	if e := output.Wait(); err == nil {
		err = e
	}
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return fmt.Errorf("streams of the program: %w", err)
	default:
		return resultOf(said)
	}
}

func openStream(conn httpstream.Connection, name string) (httpstream.Stream, error) {
	h := http.Header{}
	h.Set(v1.StreamType, name)
	s, err := conn.CreateStream(h)
	if err != nil {
		return nil, fmt.Errorf("open the stream %s: %w", name, err)
	}
	return s, nil
}

// terminalSize is what the stream of sizes consists of.
type terminalSize struct{ Width, Height int }

// followSize tells the remote terminal the size of ours, now and whenever it changes.
func (r remote) followSize(ctx context.Context, to io.Writer) {
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, unix.SIGWINCH)
	defer signal.Stop(changed)
	out := json.NewEncoder(to)
	for first := true; ; first = false {
		width, height, err := term.GetSize(int(r.terminal.Fd()))
		if err == nil && first && r.redraw {
			err = out.Encode(terminalSize{width + 1, height + 1})
		}
		if err == nil {
			err = out.Encode(terminalSize{width, height})
		}
		if err != nil {
			return // the program has ended, or the terminal is gone: neither has a size
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// resultOf reads the last word on the command, a metav1.Status.
func resultOf(said []byte) error {
	if len(said) == 0 {
		return errors.New("the connection ended before the program did: its exit code is not known")
	}
	var s metav1.Status
	if err := json.Unmarshal(said, &s); err != nil {
		return fmt.Errorf("result of the command: %w in %q", err, said)
	}
	if s.Status == metav1.StatusSuccess {
		return nil
	}
	if s.Reason == remotecommand.NonZeroExitCodeReason && s.Details != nil {
		for _, c := range s.Details.Causes {
			if c.Type != remotecommand.ExitCodeCauseType {
				continue
			}
			code, err := strconv.ParseUint(c.Message, 10, 8)
			if err != nil {
				return fmt.Errorf("exit code of the command: %w", err)
			}
			return exitCodeError(code)
		}
	}
	return errors.New(s.Message)
}
