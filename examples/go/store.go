package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"google.golang.org/protobuf/proto"

	storenodev1 "github.com/storenode/storenode/examples/go/gen/storenode/v1"
	messagev1 "github.com/storenode/storenode/examples/go/gen/waku/message/v1"
	storev3 "github.com/storenode/storenode/examples/go/gen/waku/store/v3"
	transferv1 "github.com/storenode/storenode/examples/go/gen/waku/sync/transfer/v1"
)

const (
	pubsubTopic  = "/waku/2/rs/1/0"
	contentTopic = "/my-chat/1/lobby/proto"
)

func publish(ctx context.Context, store storenodev1.StoreClient, text string) error {
	// #region publish
	now := proto.Int64(time.Now().UnixNano())
	message := &messagev1.WakuMessage{Payload: []byte(text), ContentTopic: contentTopic, Timestamp: now}
	response, err := store.Publish(ctx, &storenodev1.PublishRequest{
		Messages: []*transferv1.WakuMessageAndTopic{{Message: message, PubsubTopic: proto.String(pubsubTopic)}},
	})
	if err != nil {
		return err
	}
	for _, result := range response.Results {
		fmt.Printf("%s %x %s\n", result.Outcome, result.MessageHash, result.Reason)
	}
	// #endregion
	return nil
}

func query(ctx context.Context, store storenodev1.StoreClient) error {
	// #region query
	response, err := store.Query(ctx, &storev3.StoreQueryRequest{
		PubsubTopic: proto.String(pubsubTopic), ContentTopics: []string{contentTopic},
		IncludeData: true, PaginationLimit: proto.Uint64(10),
	})
	if err != nil {
		return err
	}
	if response.GetStatusCode() != 200 {
		return fmt.Errorf("%s (%d)", response.GetStatusDesc(), response.GetStatusCode())
	}
	show(response.Messages)
	// #endregion
	return nil
}

func scan(ctx context.Context, store storenodev1.StoreClient) error {
	// #region scan
	filter := &storenodev1.ContentFilter{ContentTopics: []string{contentTopic}}
	pages, err := store.Scan(ctx, &storenodev1.ScanRequest{Filter: filter, IncludeData: true})
	if err != nil {
		return err
	}
	for {
		page, err := pages.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		show(page.Messages)
	}
	// #endregion
	return nil
}

func follow(ctx context.Context, store storenodev1.StoreClient, file string) error {
	// #region follow
	cursor, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	filter := &storenodev1.ContentFilter{ContentTopics: []string{contentTopic}}
	pages, err := store.Follow(ctx, &storenodev1.FollowRequest{
		Filter: filter, Cursor: cursor, FromBeginning: true, IncludeData: true,
	})
	if err != nil {
		return err
	}
	for {
		page, err := pages.Recv()
		if err != nil {
			return err
		}
		show(page.Messages)
		if err := os.WriteFile(file, page.Cursor, 0o600); err != nil {
			return err
		}
	}
	// #endregion
}

func show(messages []*storev3.WakuMessageKeyValue) {
	for _, each := range messages {
		fmt.Printf("%x %s\n", each.MessageHash, each.GetMessage().GetPayload())
	}
}
