package main

import (
	"context"
	"log/slog"
	"net/http"
	"os"
	"os/signal"

	"berth/internal/localapi"
)

func main() {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	dir := os.Args[1]
	_ = os.MkdirAll(dir+"/root", 0o700)
	_ = os.MkdirAll(dir+"/run", 0o700)
	s, err := localapi.Open(localapi.Config{RootDir: dir + "/root", RunDir: dir + "/run", NodeName: "n1", Address: "127.0.0.1:0", Registry: os.Args[2], Node: http.NotFoundHandler(), Log: log})
	if err != nil {
		log.Error("open", "error", err)
		os.Exit(1)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	log.Info("serves", "address", s.Address())
	log.Info("ended", "run", s.Run(ctx), "close", s.Close())
}
