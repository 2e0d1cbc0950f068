// A client of a store node in Go; docs/clients.md shows how to build and run it.
//
//	client publish TEXT
//	client query
//	client scan
//	client follow CURSOR_FILE
//
// Environment: STORENODE_NODE, the node's HOST:PORT; STORENODE_TLS_CA, the authority of its
// certificate, and STORENODE_TOKEN_FILE, the client's token: both or neither.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"

	"google.golang.org/grpc/status"

	storenodev1 "github.com/storenode/storenode/examples/go/gen/storenode/v1"
)

var (
	errUsage    = errors.New("usage: client publish TEXT | query | scan | follow CURSOR_FILE")
	errSecurity = errors.New("set both STORENODE_TLS_CA and STORENODE_TOKEN_FILE, or neither")
)

func main() {
	// Ctrl-C ends a call, a follow after the page that is being processed.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, explain(err))
		os.Exit(1)
	}
}

func run(ctx context.Context, arguments []string) error {
	store, err := openStore()
	if err != nil {
		return err
	}
	switch {
	case len(arguments) == 2 && arguments[0] == "publish":
		return publish(ctx, store, arguments[1])
	case len(arguments) == 1 && arguments[0] == "query":
		return query(ctx, store)
	case len(arguments) == 1 && arguments[0] == "scan":
		return scan(ctx, store)
	case len(arguments) == 2 && arguments[0] == "follow":
		return follow(ctx, store, arguments[1])
	}
	return errUsage
}

func openStore() (storenodev1.StoreClient, error) {
	address := cmp.Or(os.Getenv("STORENODE_NODE"), "127.0.0.1:7420")
	authority, tokenFile := os.Getenv("STORENODE_TLS_CA"), os.Getenv("STORENODE_TOKEN_FILE")
	if authority == "" && tokenFile == "" {
		return connect(address)
	}
	if authority == "" || tokenFile == "" {
		return nil, errSecurity
	}
	token, err := os.ReadFile(tokenFile)
	if err != nil {
		return nil, err
	}
	return connectSecurely(address, authority, strings.TrimSpace(string(token)))
}

// explain returns the node's sentence and the status code that it came with.
func explain(err error) string {
	if failure, ok := status.FromError(err); ok {
		return fmt.Sprintf("%s (%s)", failure.Message(), failure.Code())
	}
	return err.Error()
}
