package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// client asks a URL again and again, each time by a connection of its own, and tells how often it
// was answered: client [-every DURATION] [-times N] [-patience DURATION] URL. Without -times it
// goes on until SIGTERM. Every 50 requests, and at the end, it prints "asked N failed M: ERROR".
// What fails before the first answer, for the time of its patience, does not count.
func client(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("client", flag.ContinueOnError)
	every := flags.Duration("every", 20*time.Millisecond, "pause between two requests")
	times := flags.Int("times", 0, "how many requests; 0 is no end")
	patience := flags.Duration("patience", 0, "how long the first answer may take")
	quiet := flags.Bool("quiet", false, "do not print what is answered")
	if err := flags.Parse(args); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	c := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	var last error
	asked, failed := 0, 0
	for began := time.Now(); time.Since(began) < *patience && ctx.Err() == nil; {
		if _, err := get(&c, flags.Arg(0)); err == nil {
			break
		}
		select {
		case <-time.After(*every):
		case <-ctx.Done():
		}
	}
	for *times == 0 || asked < *times {
		answer, err := get(&c, flags.Arg(0))
		asked++
		if err != nil {
			failed, last = failed+1, err
			fmt.Println("failed:", err)
		} else if !*quiet {
			os.Stdout.Write(answer)
		}
		if asked%50 == 0 {
			fmt.Printf("asked %d failed %d: %v\n", asked, failed, last)
		}
		select {
		case <-time.After(*every):
			continue
		case <-ctx.Done():
		}
		break
	}
	fmt.Printf("asked %d failed %d: %v\n", asked, failed, last)
	if failed > 0 {
		return errors.New("not every request was answered")
	}
	return nil
}

func get(c *http.Client, url string) ([]byte, error) {
	r, err := c.Get(url)
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		return nil, errors.New(r.Status)
	}
	return io.ReadAll(r.Body)
}

// pause does nothing until it is told to end.
func pause(ctx context.Context, _ []string) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	<-ctx.Done()
	return nil
}
