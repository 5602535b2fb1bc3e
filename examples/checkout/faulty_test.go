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
	"time"

	"go.uber.org/zap"

	"github.com/tekil-go/tekil/behaviors/idempotency"
)

// The moments at which a faulty server kills itself. An Atomic command has the first four, a Leased one the others.
const (
	never       = "never"
	beforeBegin = "before BEGIN"
	afterRead   = "after the read"
	afterWrite  = "after the business write" // of both
	afterCommit = "after COMMIT"             // of both

	beforeClaim    = "before the claim"
	afterClaim     = "after the claim"
	afterCall      = "after the call to the provider"
	afterFence     = "after the fence lock"
	duringTakeover = "during a takeover"
)

// faulty is the program with a fault: it kills itself, as kill -9 would, at the moment named, the first time that a command
// comes there. It returns only when it cannot serve.
func faulty(moment string, args []string) error {
	flags := flag.NewFlagSet("faulty", flag.ContinueOnError)
	addr := flags.String("addr", "", "")
	sqlitePath := flags.String("sqlite", "", "")
	postgresURL := flags.String("postgres", "", "")
	provider := flags.String("provider", "", "")
	forgetful := flags.Bool("forgetful", false, "it keeps the downstream key to itself")
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
	var o options
	if *provider != "" {
		o.provider = faultyPayments{newProvider(*provider, time.Minute), f, *forgetful}
	}
	handler, err := newServer(faultyOrders{kept, f}, faultyStore{store, f}, zap.NewNop(), o)
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

func (o faultyOrders) inTx(ctx context.Context, fn func(ctx context.Context) error) error {
	return o.orders.inTx(ctx, func(ctx context.Context) error {
		o.at(afterFence)
		return fn(ctx)
	})
}

func (o faultyOrders) insert(ctx context.Context, order Order, email string) error {
	err := o.orders.insert(ctx, order, email)
	o.at(afterWrite)
	return err
}

type faultyPayments struct {
	payments
	fault
	forgetful bool
}

func (p faultyPayments) authorize(ctx context.Context, key string, c Charge) (Authorization, error) {
	if p.forgetful {
		key = ""
	}
	a, err := p.payments.authorize(ctx, key, c)
	p.at(afterCall)
	return a, err
}

type faultyStore struct {
	idempotency.Store
	fault
}

func (s faultyStore) Begin(ctx context.Context, c idempotency.Claim) (idempotency.Transaction, error) {
	s.at(beforeBegin)
	a, err := s.Store.Begin(ctx, c)
	s.at(afterRead)
	if err != nil {
		return nil, err
	}
	return faultyAttempt{a, s.fault}, nil
}

func (s faultyStore) Lease(ctx context.Context, c idempotency.Claim) (idempotency.Lease, *idempotency.Record, error) {
	s.at(beforeClaim)
	l, rec, err := s.Store.Lease(ctx, c)
	if l == nil {
		return nil, rec, err
	}
	s.at(afterClaim)
	if l.Grant().TookOver {
		s.at(duringTakeover)
	}
	return faultyLease{l, s.fault}, nil, err
}

type faultyAttempt struct {
	idempotency.Transaction
	fault
}

func (a faultyAttempt) Complete(ctx context.Context, done idempotency.Completion) error {
	return a.committed(a.Transaction.Complete(ctx, done))
}

func (a faultyAttempt) Refuse(ctx context.Context, done idempotency.Completion) error {
	return a.committed(a.Transaction.Refuse(ctx, done))
}

type faultyLease struct {
	idempotency.Lease
	fault
}

func (l faultyLease) Complete(ctx context.Context, done idempotency.Completion) error {
	return l.committed(l.Lease.Complete(ctx, done))
}

func (l faultyLease) Refuse(ctx context.Context, done idempotency.Completion) error {
	return l.committed(l.Lease.Refuse(ctx, done))
}

func (f fault) committed(err error) error {
	if err != nil {
		return errors.Join(errors.New("the fault is not where it should be"), err)
	}
	f.at(afterCommit)
	return nil
}
