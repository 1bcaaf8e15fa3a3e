// Takes and releases a lock of redsync, on command: one of `try`, `wait` and `unlock` a line.
//
// Usage: redsync HOST PORT KEY
package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

func main() {
	client := redis.NewClient(&redis.Options{Addr: net.JoinHostPort(os.Args[1], os.Args[2])})
	mutex := redsync.New(goredis.NewPool(client)).NewMutex(
		os.Args[3], redsync.WithExpiry(30*time.Second), redsync.WithTries(200))
	fmt.Println("ready")
	commands := bufio.NewScanner(os.Stdin)
	for commands.Scan() {
		switch commands.Text() {
		case "try":
			fmt.Println(outcome(mutex.TryLockContext(context.Background())))
		case "wait":
			fmt.Println(outcome(mutex.LockContext(context.Background())))
		default:
			if released, err := mutex.UnlockContext(context.Background()); !released || err != nil {
				panic(fmt.Sprint(released, err))
			}
			fmt.Println("released")
		}
	}
}

func outcome(err error) string {
	if err == nil {
		return "taken"
	}
	return "refused"
}
