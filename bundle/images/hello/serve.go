package main

import (
	"context"
	"errors"
	"fmt"
	"html"
	"net"
	"net/http"
	"os"
	"time"
)

// serve answers until ctx is done, then waits up to three seconds for requests in progress.
func serve(ctx context.Context, port, dir string) error {
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	started := time.Now()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		fmt.Fprintf(w, "<!doctype html><title>Hello</title>\n<h1>Hello from %s</h1>\n<p>pod IP %s</p>\n<p>up %s</p>\n",
			html.EscapeString(host), podIP(), time.Since(started).Round(time.Second))
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, "ok") })
	if dir != "" {
		mux.Handle("GET /files/", http.StripPrefix("/files/", http.FileServer(http.Dir(dir))))
	}
	server := &http.Server{Addr: net.JoinHostPort("", port), Handler: logged(mux), ReadHeaderTimeout: 10 * time.Second}
	listener, err := net.Listen("tcp", server.Addr)
	if err != nil {
		return err
	}
	fmt.Printf("%s listening on %s, pod IP %s\n", host, listener.Addr(), podIP())

	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	last, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	if err := server.Shutdown(last); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	fmt.Println("bye")
	return nil
}

// logged writes one line per request to standard output.
func logged(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		answer := &answer{ResponseWriter: w, code: http.StatusOK}
		next.ServeHTTP(answer, r)
		fmt.Printf("%s %s %s %s %d %s\n", start.UTC().Format(time.RFC3339), r.RemoteAddr, r.Method, r.URL.Path, answer.code,
			time.Since(start).Round(time.Microsecond))
	})
}

// answer records the status code for the log.
type answer struct {
	http.ResponseWriter
	code int
}

func (a *answer) WriteHeader(code int) {
	a.code = code
	a.ResponseWriter.WriteHeader(code)
}

// podIP returns the downward API's POD_IP, else the first address that is not a loopback address.
func podIP() string {
	if ip := os.Getenv("POD_IP"); ip != "" {
		return ip
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return "unknown"
	}
	for _, addr := range addrs {
		if ip, ok := addr.(*net.IPNet); ok && ip.IP.IsGlobalUnicast() {
			return ip.IP.String()
		}
	}
	return "none"
}
