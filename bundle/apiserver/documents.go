//go:build apiserver

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"berth/internal/localapi/apiserver"
)

// documentsTime is the creation time in the documents, fixed so that they are reproducible.
var documentsTime = time.Date(2000, time.January, 1, 0, 0, 0, 0, time.UTC)

// writeDocuments writes a file of all documents of the API. It needs no store, because none of them
// contains objects.
func writeDocuments(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("%w: documents needs the path of the file that it is to write, and nothing else: %q", errUsage, args)
	}
	here, there := net.Pipe()
	client := apiserver.NewClient(here)
	defer func() { _ = errors.Join(client.Close(), there.Close()) }()
	api, _, err := newAPI(context.Background(), client, "localhost", newPipes())
	if err != nil {
		return fmt.Errorf("make the API: %w", err)
	}
	file, err := os.Create(args[0])
	if err != nil {
		return err
	}
	err = apiserver.KeepDocuments(context.Background(), api, documentsTime, file)
	return errors.Join(err, file.Close())
}
