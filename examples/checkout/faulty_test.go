package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"syscall"

	"go.uber.org/zap"

	"github.com/tekil-go/tekil/behaviors/idempotency"
)

// The moments at which a faulty server kills itself.
const (
	beforeBegin = "before BEGIN"
	afterRead   = "after the read"
	afterWrite  = "after the business write"
	afterCommit = "after COMMIT"
)

// faulty is the program with a fault: it kills itself, as kill -9 would, at the moment named, the first time that a command
// comes there. It returns only when it cannot serve.
func faulty(moment string, args []string) error {
	flags := flag.NewFlagSet("faulty", flag.ContinueOnError)
	addr := flags.String("addr", "", "")
	sqlitePath := flags.String("sqlite", "", "")
	postgresURL := flags.String("postgres", "", "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	var kept orders
	var store idempotency.Store
	var err error
	if *postgresURL != "" {
		kept, store, _, err = openPostgres(context.Background(), *postgresURL)
	} else {
		kept, store, _, err = openSQLite(context.Background(), *sqlitePath)
	}
	if err != nil {
		return err
	}
	f := fault(moment)
	handler, err := newServer(faultyOrders{kept, f}, faultyStore{store, f}, zap.NewNop(), false)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", *addr)
	if err != nil {
		return err
	}
	fmt.Printf("checkout: listening on http://%s\n", listener.Addr())
	return http.Serve(listener, handler)
}

// fault is the moment at which the process dies.
type fault string

func (f fault) at(moment string) {
	if string(f) != moment {
		return
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // the signal may take a moment, in which nothing more must happen
}

type faultyOrders struct {
	orders
	fault
}

func (o faultyOrders) insert(ctx context.Context, order Order, email string) error {
	err := o.orders.insert(ctx, order, email)
	o.at(afterWrite)
	return err
}

type faultyStore struct {
	idempotency.Store
	fault
}

func (s faultyStore) Begin(ctx context.Context, c idempotency.Claim) (idempotency.Attempt, error) {
	s.at(beforeBegin)
	a, err := s.Store.Begin(ctx, c)
	s.at(afterRead)
	if err != nil {
		return nil, err
	}
	return faultyAttempt{a, s.fault}, nil
}

type faultyAttempt struct {
	idempotency.Attempt
	fault
}

func (a faultyAttempt) Complete(ctx context.Context, done idempotency.Completion) error {
	return a.committed(a.Attempt.Complete(ctx, done))
}

func (a faultyAttempt) Refuse(ctx context.Context, done idempotency.Completion) error {
	return a.committed(a.Attempt.Refuse(ctx, done))
}

func (a faultyAttempt) committed(err error) error {
	if err != nil {
		return errors.Join(errors.New("the fault is not where it should be"), err)
	}
	a.at(afterCommit)
	return nil
}
