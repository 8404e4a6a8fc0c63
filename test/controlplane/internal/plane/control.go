package plane

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"
)

// What can be asked for on the control socket: one line of text, answered by answerOK or by the
// text of an error.
const (
	commandDown           = "down" // answered when heard; the lock says when it is done
	commandStatus         = "status"
	commandStopAPIServer  = "stop-apiserver"
	commandStartAPIServer = "start-apiserver"

	answerOK = "ok"
)

// socketPathSize is how long the path of a socket may be, in bytes: that of sun_path without the
// final zero (unix(7)).
const socketPathSize = 107

// lineTimeout is how long a client that has connected may take to say what it wants.
const lineTimeout = 10 * time.Second

// errNotRunning is that of a request that nobody is there for.
var errNotRunning = errors.New("no control plane is running")

// request is a command for the goroutine that the processes belong to. answer has room for one.
type request struct {
	command string
	answer  chan error
}

func (l Layout) checkSocket() error {
	if size := len(l.socket()); size > socketPathSize {
		return fmt.Errorf("%s is too long for the path of a socket by %d bytes: name a folder with a shorter path", l.socket(), size-socketPathSize)
	}
	return nil
}

// listen answers on the control socket until the returned function is called, which waits for the
// answers that are being given.
func (p *Plane) listen(ctx context.Context, end context.CancelCauseFunc) (closeSocket func(), err error) {
	l, err := net.Listen("unix", p.layout.socket())
	if err != nil {
		return nil, fmt.Errorf("open the control socket: %w", err)
	}
	var answering sync.WaitGroup
	answering.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // closed; nothing else ends a socket of this kind
			}
			answering.Go(func() {
				defer conn.Close()
				if err := p.answer(ctx, end, conn); err != nil {
					p.log.Error("control socket", "error", err)
				}
			})
		}
	})
	return func() {
		_ = l.Close() // it is not used any more, whatever happens
		answering.Wait()
	}, nil
}

// answer reads one command and answers it.
func (p *Plane) answer(ctx context.Context, end context.CancelCauseFunc, conn net.Conn) error {
	if err := conn.SetReadDeadline(time.Now().Add(lineTimeout)); err != nil {
		return err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return fmt.Errorf("read a command: %w", err)
	}
	answer := answerOK
	if err := p.ask(ctx, end, strings.TrimSpace(line)); err != nil {
		answer = err.Error()
	}
	_, err = io.WriteString(conn, answer)
	return err
}

// ask has a command done by the goroutine that the processes belong to. While that is starting
// them, it waits; the end does not.
func (p *Plane) ask(ctx context.Context, end context.CancelCauseFunc, command string) error {
	if command == commandDown {
		end(errDown)
		return nil
	}
	r := request{command: command, answer: make(chan error, 1)}
	select {
	case p.requests <- r:
	case <-ctx.Done():
		return fmt.Errorf("the control plane is ending: %w", context.Cause(ctx))
	}
	select {
	case err := <-r.answer:
		return err
	case <-ctx.Done():
		return fmt.Errorf("the control plane is ending: %w", context.Cause(ctx))
	}
}

// Status waits until the control plane in the folder has started, and is an error unless all of it
// runs.
func Status(l Layout) error { return call(l, commandStatus) }

// StopAPIServer stops the API server alone. It returns when it has ended, and is no error if it has
// been stopped before.
func StopAPIServer(l Layout) error { return call(l, commandStopAPIServer) }

// StartAPIServer starts the API server again, at the address that it had. It returns when it is
// ready.
func StartAPIServer(l Layout) error { return call(l, commandStartAPIServer) }

// Down ends the control plane in the folder and returns when its process has ended. It is no error
// if none is running.
func Down(l Layout) error {
	lock, err := os.OpenFile(l.lock(), os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("end the control plane in %s: %w", l, err)
	}
	defer lock.Close()
	if err := flock(lock, lockNow); err == nil || !errors.Is(err, errLocked) {
		return err
	}
	if err := call(l, commandDown); err != nil && !errors.Is(err, errNotRunning) {
		return err // one that is ending has closed its socket already
	}
	return flock(lock, lockWait)
}

// Remove removes the folder of a control plane that does not run. It is no error if there is none,
// and it is one if the folder is not that of a control plane.
func Remove(l Layout) error {
	if _, err := os.Lstat(string(l)); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if _, err := os.Lstat(l.lock()); err != nil {
		return fmt.Errorf("remove %s: not the folder of a control plane: %w", l, err)
	}
	if running, err := l.running(); err != nil || running {
		return errors.Join(err, fmt.Errorf("remove %s: a control plane is running in it", l))
	}
	return os.RemoveAll(string(l))
}

// call asks the control plane in the folder for something.
func call(l Layout, command string) error {
	if err := l.checkSocket(); err != nil {
		return err
	}
	conn, err := net.Dial("unix", l.socket())
	if err != nil {
		return fmt.Errorf("%w in %s: %w", errNotRunning, l, err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, command+"\n"); err != nil {
		return fmt.Errorf("%s: %w", command, err)
	}
	answer, err := io.ReadAll(conn)
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", command, err)
	case len(answer) == 0:
		return fmt.Errorf("%s: the control plane in %s ended without an answer", command, l)
	case string(answer) != answerOK:
		return fmt.Errorf("%s: %s", command, answer)
	}
	return nil
}
