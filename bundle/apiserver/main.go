//go:build apiserver

// Command apiserver is the API writer: it validates and admits writes to the local API of an agent,
// and responds as kube-apiserver does, because it uses Kubernetes' registries, admission plugins
// and handlers. It stores nothing. The agent starts it for a write, and stops it.
//
// Called as kubectl, or with this as its first argument, it is kubectl, which uses the same
// libraries.
//
// Owns: which kinds, subresources and admission plugins there are.
// Reads: objects, from the agent's store; the client, from the headers X-Remote-User,
// X-Remote-Group and X-Remote-Uid.
// Never (but as kubectl): opens a socket, or a file but that of its documents; authorizes requests:
// the agent does, and it is the only client.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/klog/v2"

	"berth/bundle/apiserver/messages"
	"berth/internal/localapi/apiserver"
)

// Exit codes besides 0, which is for a requested exit.
const (
	exitFailed = 1
	exitUsage  = 2
)

// lastRequests is the time limit of requests in progress at a shutdown.
const lastRequests = 3 * time.Second

// errUsage is a mistake of the caller.
var errUsage = errors.New("wrong usage")

func main() {
	if args, ok := messages.Kubectl(os.Args); ok {
		runKubectl(args)
		return
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	slog.SetDefault(log)
	klog.SetSlogLogger(log)
	switch err := run(os.Args[1:]); {
	case errors.Is(err, errUsage):
		log.Error(err.Error())
		os.Exit(exitUsage)
	case err != nil:
		log.Error(err.Error())
		os.Exit(exitFailed)
	}
}

func run(args []string) error {
	if len(args) > 0 && args[0] == "documents" {
		return writeDocuments(args[1:])
	}
	flags := flag.NewFlagSet("apiserver", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // print an error once, in one line
	node := flags.String("node", "", "the name of the `node` that pods are bound to")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		flags.SetOutput(os.Stdout)
		fmt.Println("apiserver validates and admits writes to the local API of an agent, which starts it.\n\"apiserver documents FILE\" writes its discovery and OpenAPI documents.")
		flags.PrintDefaults()
		return nil
	case err != nil:
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	if wrong := validation.IsDNS1123Subdomain(*node); len(wrong) > 0 || flags.NArg() > 0 {
		return fmt.Errorf("%w: --node %q must be the name of a Node %v, and arguments besides it are not known: %q", errUsage, *node, wrong, flags.Args())
	}
	listener, client, err := descriptors()
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	return serve(ctx, listener, client, *node)
}

// descriptors returns the sockets that the agent has passed to this program.
func descriptors() (net.Listener, *apiserver.Client, error) {
	listenerFile := os.NewFile(apiserver.ListenerDescriptor, "the socket of the API")
	listener, err := net.FileListener(listenerFile)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: descriptor %d must be a socket that listens; the agent starts this program: %w", errUsage, apiserver.ListenerDescriptor, err)
	}
	storeFile := os.NewFile(apiserver.StoreDescriptor, "the socket of the store")
	conn, err := net.FileConn(storeFile)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: descriptor %d must be a connection to the agent's store; the agent starts this program: %w", errUsage, apiserver.StoreDescriptor, err)
	}
	// Both connections use duplicates of the descriptors.
	if err := errors.Join(listenerFile.Close(), storeFile.Close()); err != nil {
		return nil, nil, err
	}
	return listener, apiserver.NewClient(conn), nil
}

// serve serves requests until the context is done, which is no error, or the agent has exited.
func serve(ctx context.Context, listener net.Listener, client *apiserver.Client, node string) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	own := newPipes()
	handler, informers, err := newAPI(ctx, client, node, own)
	if err != nil {
		return fmt.Errorf("make the API: %w", err)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute, ErrorLog: slog.NewLogLogger(slog.Default().Handler(), slog.LevelWarn)}
	ended := make(chan error, 2)
	for _, l := range []net.Listener{own, listener} {
		go func() { ended <- server.Serve(l) }()
	}
	informers.StartWithContext(ctx)
	go func() {
		// Until the plugins' informers have synced, requests block.
		if informers.WaitForCacheSyncWithContext(ctx).Err == nil {
			_ = client.Ready(ctx) // fails if the agent has exited, which stops the program
		}
	}()
	select {
	case err := <-ended:
		return fmt.Errorf("serve the API: %w", err)
	case <-client.Done():
		return errors.New("the agent's end of the store's socket is closed: the agent is gone")
	case <-ctx.Done():
	}
	stop() // the informers' watches would not stop by themselves
	last, cancel := context.WithTimeout(context.Background(), lastRequests)
	defer cancel()
	if err := server.Shutdown(last); err != nil {
		return fmt.Errorf("requests under way did not end within %v", lastRequests)
	}
	return nil
}
