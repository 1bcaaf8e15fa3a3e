// Takes and releases a lock of rueidislock, on command: one of `try`, `wait` and `unlock` a line.
//
// Usage: rueidislock HOST PORT NAME
//
// With a majority of one the lock is the key `rueidislock:0:NAME`.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

func main() {
	locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{InitAddress: []string{net.JoinHostPort(os.Args[1], os.Args[2])}},
		KeyMajority:  1,
		KeyValidity:  30 * time.Second,
		// An attempt may take so long: 20 ms by default, which a busy machine exceeds.
		TryNextAfter: 5 * time.Second,
	})
	if err != nil {
		panic(err)
	}
	fmt.Println("ready")
	release := func() {}
	commands := bufio.NewScanner(os.Stdin)
	for commands.Scan() {
		switch commands.Text() {
		case "try":
			_, cancel, err := locker.TryWithContext(context.Background(), os.Args[3])
			fmt.Println(outcome(err))
			if err == nil {
				release = cancel
			}
		case "wait":
			_, cancel, err := locker.WithContext(context.Background(), os.Args[3])
			fmt.Println(outcome(err))
			if err == nil {
				release = cancel
			}
		default:
			release()
			fmt.Println("released")
		}
	}
}

func outcome(err error) string {
	if err == nil {
		return "taken"
	}
	if !errors.Is(err, rueidislock.ErrNotLocked) {
		panic(err)
	}
	return "refused"
}
