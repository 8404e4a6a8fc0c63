// Hello is the program of the hello image: a small web server for the examples, and a few commands
// for containers in tests.
//
//	hello serve [-port N] [-dir DIR]    a page with host name, pod IP, uptime; DIR at /files/
//	hello write [-rate BYTES]           numbered lines to standard output at BYTES per second
//	hello stamp [-every DURATION] FILE  writes the time and the host name into FILE periodically
//	hello sleep [DURATION]              nothing, until DURATION has passed or a signal arrives
//	hello exit [CODE]                   exits at once
//
// Every command but exit exits with code 0 on SIGTERM or SIGINT.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

const usage = "usage: hello serve|write|stamp|sleep|exit [arguments]"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	args := os.Args[1:]
	if len(args) == 0 {
		args = []string{"serve"}
	}
	code, err := run(ctx, args[0], args[1:])
	if err != nil {
		fmt.Fprintf(os.Stderr, "hello %s: %v\n", args[0], err)
		code = 1
	}
	os.Exit(code)
}

func run(ctx context.Context, command string, args []string) (code int, err error) {
	flags := flag.NewFlagSet("hello "+command, flag.ExitOnError)
	switch command {
	case "serve":
		port := flags.String("port", envOr("PORT", "8080"), "TCP port to listen on")
		dir := flags.String("dir", "", "folder to serve under /files/")
		if err := flags.Parse(args); err != nil {
			return 1, err
		}
		return 0, serve(ctx, *port, *dir)
	case "write":
		rate := flags.Int("rate", 1<<20, "bytes per second")
		if err := flags.Parse(args); err != nil {
			return 1, err
		}
		return 0, write(ctx, os.Stdout, *rate)
	case "stamp":
		every := flags.Duration("every", time.Second, "time between two stamps")
		if err := flags.Parse(args); err != nil {
			return 1, err
		}
		return 0, stamp(ctx, flags.Arg(0), *every)
	case "sleep":
		return 0, sleep(ctx, args)
	case "exit":
		if len(args) == 0 {
			return 0, nil
		}
		return strconv.Atoi(args[0])
	}
	return 0, errors.New("unknown command; " + usage)
}

func envOr(name, fallback string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return fallback
}

// write writes numbered lines of 64 bytes at the rate, in bursts of 10 ms.
func write(ctx context.Context, out *os.File, rate int) error {
	const line, perSecond = 64, 100
	if rate < line {
		return fmt.Errorf("-rate %d: the least is one line of %d bytes per second", rate, line)
	}
	tick := time.NewTicker(time.Second / perSecond)
	defer tick.Stop()
	start, n := time.Now(), 0
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		var burst []byte
		for due := int(time.Since(start).Seconds() * float64(rate) / line); n < due && len(burst) < rate; n++ {
			burst = fmt.Appendf(burst, "%-*d\n", line-1, n)
		}
		if _, err := out.Write(burst); err != nil {
			return err
		}
	}
}

// stamp replaces the file atomically.
func stamp(ctx context.Context, file string, every time.Duration) error {
	if file == "" {
		return errors.New("a file to write to is needed; " + usage)
	}
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	for n := 1; ; n++ {
		text := fmt.Sprintf("%s wrote stamp %d at %s\n", host, n, time.Now().UTC().Format(time.RFC3339))
		next := filepath.Join(filepath.Dir(file), "."+filepath.Base(file)+".next")
		if err := os.WriteFile(next, []byte(text), 0o644); err != nil {
			return err
		}
		if err := os.Rename(next, file); err != nil {
			return err
		}
		fmt.Print(text)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(every):
		}
	}
}

func sleep(ctx context.Context, args []string) error {
	if len(args) == 0 {
		<-ctx.Done()
		return nil
	}
	d, err := time.ParseDuration(args[0])
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
	return nil
}
