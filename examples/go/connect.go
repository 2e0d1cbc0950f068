package main

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	storenodev1 "github.com/storenode/storenode/examples/go/gen/storenode/v1"
)

// #region connect

// pings detect a node that is gone while a Follow waits for messages.
var pings = grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: time.Minute})

func connect(address string) (storenodev1.StoreClient, error) {
	connection, err := grpc.NewClient(address,
		grpc.WithTransportCredentials(insecure.NewCredentials()), pings)
	if err != nil {
		return nil, err
	}
	return storenodev1.NewStoreClient(connection), nil
}

// #endregion

// #region tls

func connectSecurely(address, authority, token string) (storenodev1.StoreClient, error) {
	tls, err := credentials.NewClientTLSFromFile(authority, "")
	if err != nil {
		return nil, err
	}
	connection, err := grpc.NewClient(address, pings,
		grpc.WithTransportCredentials(tls), grpc.WithPerRPCCredentials(bearer(token)))
	if err != nil {
		return nil, err
	}
	return storenodev1.NewStoreClient(connection), nil
}

// bearer is a token that is sent with every call, and never without TLS.
type bearer string

func (token bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(token)}, nil
}

func (bearer) RequireTransportSecurity() bool { return true }

// #endregion
