package apiserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"berth/internal/localapi/store"
)

// TestMain runs the tests, or is the child that they start: this program, under the child's name.
func TestMain(m *testing.M) {
	if os.Args[0] == "apiserver" {
		os.Exit(fakeChild(strings.TrimPrefix(strings.Join(os.Args[1:], " "), "--node ")))
	}
	goleak.VerifyTestMain(m)
}

// fakeChild is what the real program is to the agent. The name of the node says what is wrong with
// it.
func fakeChild(node string) int {
	if node == "broken" {
		fmt.Fprintln(os.Stderr, "the fake is broken")
		return 3
	}
	if node == "stubborn" {
		signal.Ignore(syscall.SIGTERM)
	}
	listener, err := net.FileListener(os.NewFile(ListenerDescriptor, ""))
	if err != nil {
		panic(err)
	}
	conn, err := net.FileConn(os.NewFile(StoreDescriptor, ""))
	if err != nil {
		panic(err)
	}
	client := NewClient(conn)
	if node == "slow" {
		// It serves when it is told to, by an object that comes into the store.
		w, err := client.Watch(context.Background(), WatchCall{Resource: "signals", After: 1})
		if err == nil {
			_, err = w.Next(context.Background())
		}
		if err != nil {
			panic(err)
		}
	}
	go func() {
		if err := http.Serve(listener, fakeAPI(client)); !errors.Is(err, net.ErrClosed) {
			panic(err)
		}
	}()
	if err := client.Ready(context.Background()); err != nil {
		panic(err)
	}
	ended := make(chan os.Signal, 1)
	if node != "stubborn" {
		signal.Notify(ended, syscall.SIGTERM)
	}
	select {
	case <-ended:
		return 0
	case <-client.Done():
		return 1
	}
}

func fakeAPI(client *Client) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/headers", func(w http.ResponseWriter, r *http.Request) { _ = r.Header.Write(w) })
	mux.HandleFunc("/die", func(http.ResponseWriter, *http.Request) {
		fmt.Fprintln(os.Stderr, "the fake was asked to die")
		os.Exit(4)
	})
	mux.HandleFunc("/process", func(w http.ResponseWriter, _ *http.Request) {
		status, err := os.ReadFile("/proc/self/status")
		if err != nil {
			panic(err)
		}
		_, _ = w.Write(status)
		fmt.Fprintf(w, "Environment:\t%v\nGroup of processes:\t%v\n", os.Environ(), syscall.Getpgrp() == os.Getpid())
	})
	mux.HandleFunc("/write/{name}", func(w http.ResponseWriter, r *http.Request) {
		value, err := io.ReadAll(r.Body)
		if err != nil {
			panic(err)
		}
		revision, err := client.Write(r.Context(), store.Key{Resource: "things", Name: r.PathValue("name")}, 0, value)
		fmt.Fprintln(w, revision, err)
	})
	mux.HandleFunc("/stream", func(w http.ResponseWriter, r *http.Request) {
		changes, err := client.Watch(r.Context(), WatchCall{Resource: "signals", After: 1})
		if err != nil {
			panic(err)
		}
		defer changes.Stop()
		fmt.Fprintln(w, "first")
		w.(http.Flusher).Flush()
		next, err := changes.Next(r.Context())
		fmt.Fprintln(w, len(next), err)
	})
	mux.HandleFunc("/hang", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	return mux
}
