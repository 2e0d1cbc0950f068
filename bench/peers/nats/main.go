// Measures NATS JetStream: a server and its clients in one process, over loopback.
//
// usage: nats DIRECTORY MESSAGES
//
// Prints a line of JSON for each case, with the processor time of the process in microseconds a
// message ("cpu_us") and messages a second ("per_s"). Messages have random payloads of 200 bytes.
// In the cases "single", "callers" and "batches_synced" each is on the disk when it is
// acknowledged (sync: always); in "batches" the server syncs every two minutes, its default.
package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io/fs"
	"log"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	payloadBytes = 200
	callers      = 100
	followers    = 100
	singles      = 3000
	followed     = 200
	batch        = 1000
	patience     = 10 * time.Minute
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: nats DIRECTORY MESSAGES")
	}
	directory := os.Args[1]
	count := must(strconv.Atoi(os.Args[2]))
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	synced := start(filepath.Join(directory, "synced"), true)
	report("empty", nil, map[string]float64{"memory_mib": memoryMiB()})
	single(ctx, synced)
	atOnce(ctx, synced)
	batches(ctx, synced, "batches_synced", count/10)
	synced.Shutdown()
	plain := start(filepath.Join(directory, "plain"), false)
	batches(ctx, plain, "batches", count)
	read(ctx, plain, count)
	follow(ctx, plain)
	plain.Shutdown()
	plain.WaitForShutdown()
	stored := float64(size(filepath.Join(directory, "plain"))) / float64(count+followed)
	report("disk", nil, map[string]float64{"bytes": stored})
}

func start(directory string, synced bool) *server.Server {
	options := &server.Options{
		Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: directory, SyncAlways: synced, NoSigs: true,
	}
	made := must(server.NewServer(options))
	made.Start()
	if !made.ReadyForConnections(time.Minute) {
		log.Fatal("the server is not ready after a minute")
	}
	return made
}

// connect opens a connection of its own, on a stream that takes every topic.
func connect(ctx context.Context, to *server.Server) jetstream.JetStream {
	found := must(jetstream.New(must(nats.Connect(to.ClientURL()))))
	must(found.CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: "bench", Subjects: []string{"bench.>"}}))
	return found
}

func single(ctx context.Context, to *server.Server) {
	stream, payload := connect(ctx, to), random()
	measured := begin()
	for range singles {
		must(stream.Publish(ctx, "bench.one", payload))
	}
	report("single", measured(singles), nil)
}

func atOnce(ctx context.Context, to *server.Server) {
	streams := make([]jetstream.JetStream, callers)
	for caller := range streams {
		streams[caller] = connect(ctx, to)
	}
	var group sync.WaitGroup
	measured := begin()
	for _, stream := range streams {
		group.Go(func() {
			payload := random()
			for range singles / callers {
				must(stream.Publish(ctx, "bench.one", payload))
			}
		})
	}
	group.Wait()
	report("callers", measured(singles), nil)
}

func batches(ctx context.Context, to *server.Server, name string, count int) {
	stream := must(jetstream.New(must(nats.Connect(to.ClientURL())), jetstream.WithPublishAsyncMaxPending(batch)))
	connect(ctx, to)
	measured := begin()
	for range count {
		must(stream.PublishAsync("bench.many", random(), jetstream.WithStallWait(patience)))
	}
	<-stream.PublishAsyncComplete()
	report(name, measured(count), nil)
}

func read(ctx context.Context, from *server.Server, count int) {
	ordered := jetstream.OrderedConsumerConfig{}
	consumer := must(connect(ctx, from).OrderedConsumer(ctx, "bench", ordered))
	messages := must(consumer.Messages())
	measured := begin()
	for range count {
		must(messages.Next())
	}
	report("read", measured(count), nil)
	messages.Stop()
}

// follow measures a delivery of a message to one of many followers, publishing included.
func follow(ctx context.Context, from *server.Server) {
	stream := connect(ctx, from)
	ordered := jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverNewPolicy}
	var delivered sync.WaitGroup
	for range followers {
		consumer := must(connect(ctx, from).OrderedConsumer(ctx, "bench", ordered))
		must(consumer.Consume(func(jetstream.Msg) { delivered.Done() }))
	}
	send := func(count int) {
		for range count {
			delivered.Add(followers)
			must(stream.Publish(ctx, "bench.one", random()))
			delivered.Wait()
		}
	}
	send(1)
	measured := begin()
	send(followed - 1)
	report("follow", measured((followed-1)*followers), nil)
}

// begin returns a function that returns what the process has used since.
func begin() func(count int) map[string]float64 {
	cpu, began := processorTime(), time.Now()
	return func(count int) map[string]float64 {
		spent, taken := processorTime()-cpu, time.Since(began)
		return map[string]float64{
			"cpu_us": float64(spent.Microseconds()) / float64(count),
			"per_s":  float64(count) / taken.Seconds(),
		}
	}
}

func processorTime() time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		log.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

func memoryMiB() float64 {
	var size, resident int
	if _, err := fmt.Sscan(string(must(os.ReadFile("/proc/self/statm"))), &size, &resident); err != nil {
		log.Fatal(err)
	}
	return float64(resident*os.Getpagesize()) / (1 << 20)
}

func size(directory string) (bytes int64) {
	err := filepath.WalkDir(directory, func(_ string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			bytes += must(entry.Info()).Size()
		}
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	return bytes
}

func random() []byte {
	made := make([]byte, payloadBytes)
	must(rand.Read(made))
	return made
}

func report(name string, figures, more map[string]float64) {
	line := map[string]any{"case": name}
	for _, each := range []map[string]float64{figures, more} {
		for key, value := range each {
			line[key] = value
		}
	}
	fmt.Println(string(must(json.Marshal(line))))
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}
