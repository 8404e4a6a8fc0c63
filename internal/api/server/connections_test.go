package server_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"berth/internal/api/server"
)

// fewFiles is a limit of open files with which the HTTPS port has 128 connections for strangers and
// 128 for those it knows, and the read-only port 16.
const fewFiles = 1024

// flood opens connections that say nothing, one after the other, from an address; "": each from
// another.
func flood(t *testing.T, l *pipeListener, n int, from string) []net.Conn {
	t.Helper()
	conns := make([]net.Conn, n)
	for i := range conns {
		remote := fmt.Sprintf("%s:%d", from, i+1)
		if from == "" {
			remote = fmt.Sprintf("10.1.%d.%d:1", i/256, i%256)
		}
		c, err := l.dialFrom(t.Context(), remote)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		conns[i] = c
	}
	return conns
}

// begin sends the first byte of a handshake, as far as connections are open, and waits until it has
// been noticed.
func begin(conns []net.Conn) {
	for _, c := range conns {
		_, _ = c.Write([]byte{22}) // the other end of some is closed
	}
	synctest.Wait()
}

// closed counts the connections that the other end has closed: a pipe takes no deadline then.
func closed(conns []net.Conn) int {
	n := 0
	for _, c := range conns {
		if errors.Is(c.SetReadDeadline(time.Time{}), io.ErrClosedPipe) {
			n++
		}
	}
	return n
}

// believed authenticates whoever shows a certificate.
var believed = server.Authentication{VerifyClient: func([]*x509.Certificate) error { return nil }}

// Connections that show nothing have no more than their share, and the next client gets in, from
// their address as from another.
func TestSilentConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		cfg := server.Config{Handlers: newNode().handlers(), OpenFiles: fewFiles, Log: slog.New(slog.NewTextHandler(&log, nil))}
		k := serveKubeletWith(t, cfg, server.Kubelet{Authentication: believed})
		alice := newCertificate(t, pkix.Name{CommonName: "alice"})
		silent := flood(t, k.secure, 400, "10.0.0.1")
		for _, from := range []string{"10.0.0.1:1000", "10.0.0.2:1"} {
			if got := k.ask(k.secure, "GET", "/healthz", credential{cert: alice, from: from}); got.Status != 200 {
				t.Errorf("with a certificate, from %s: %+v", from, got)
			}
		}
		synctest.Wait()
		if got := closed(silent); got != 400-128+1 { // two have come since, of which one has the place of the other
			t.Errorf("%d silent connections of 400 were closed", got)
		}
		if n := strings.Count(log.String(), "too many unauthenticated connections are open"); n != 1 || !strings.Contains(log.String(), "from=10.0.0.1") {
			t.Errorf("it was told %d times:\n%s", n, log.String())
		}
		time.Sleep(time.Minute)
		flood(t, k.secure, 200, "10.0.0.1")
		synctest.Wait()
		if n := strings.Count(log.String(), "too many unauthenticated connections are open"); n != 2 {
			t.Errorf("a minute later it was told %d times", n)
		}
	})
}

// Who was let in keeps the connection, idle or with an answer under way, whatever comes to the
// door, from wherever it comes.
func TestKnownConnectionsStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := server.Config{Handlers: newNode().handlers(), OpenFiles: fewFiles}
		asked, answer := make(chan bool), make(chan error)
		cfg.Handlers.Health.Check = func() error {
			asked <- true
			return <-answer
		}
		k := serveKubeletWith(t, cfg, server.Kubelet{Authentication: believed})
		via := k.client(newCertificate(t, pkix.Name{CommonName: "alice"}))
		dials, dial := 0, via.DialContext
		via.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			dials++
			return dial(ctx, network, address)
		}
		defer via.CloseIdleConnections()
		if got := k.status(via, "GET", "/healthz/ping"); got != 200 {
			t.Fatalf("got %d", got)
		}
		waiting := make(chan int)
		go func() {
			waits := k.client(newCertificate(t, pkix.Name{CommonName: "bob"}))
			defer waits.CloseIdleConnections()
			waiting <- k.status(waits, "GET", "/healthz/syncloop")
		}()
		<-asked
		begin(flood(t, k.secure, 300, ""))
		flood(t, k.secure, 128, "")
		synctest.Wait()
		if got := k.status(via, "GET", "/healthz/ping"); got != 200 || dials != 1 {
			t.Errorf("got %d after %d connections", got, dials)
		}
		answer <- nil
		if got := <-waiting; got != 200 {
			t.Errorf("the answer under way became %d", got)
		}
	})
}

// Those who are refused stay strangers, as often as they ask.
func TestRefusedConnectionsStayStrangers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := serveKubeletWith(t, server.Config{Handlers: newNode().handlers(), OpenFiles: fewFiles}, server.Kubelet{
			Authentication: server.Authentication{Tokens: &apiServer{}},
		})
		via := k.client(nil)
		dials, dial := 0, via.DialContext
		via.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			dials++
			return dial(ctx, network, address)
		}
		defer via.CloseIdleConnections()
		for range 2 {
			if got := k.status(via, "GET", "/healthz"); got != 401 {
				t.Errorf("got %d", got)
			}
		}
		if dials != 1 {
			t.Fatalf("%d connections for two requests", dials)
		}
		begin(flood(t, k.secure, 300, ""))
		flood(t, k.secure, 128, "")
		synctest.Wait()
		if got := k.status(via, "GET", "/healthz"); got != 401 || dials != 2 {
			t.Errorf("got %d after %d connections", got, dials)
		}
	})
}

// The ports that ask nobody for a name have bounds, too.
func TestSilentConnectionsAtOpenPorts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := serveKubeletWith(t, server.Config{Handlers: newNode().handlers(), OpenFiles: fewFiles}, server.Kubelet{})
		for _, l := range []*pipeListener{k.readOnly, k.healthz} {
			silent := flood(t, l, 100, "10.0.0.1")
			if got := k.ask(l, "GET", "/healthz", credential{}); got.Status != 200 {
				t.Errorf("got %+v", got)
			}
			synctest.Wait()
			if got := closed(silent); got != 100-16+1 {
				t.Errorf("%d silent connections of 100 were closed", got)
			}
		}
	})
}
