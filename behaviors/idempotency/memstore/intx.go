package memstore

import (
	"context"
	"fmt"

	"github.com/tekil-go/tekil/behaviors/idempotency"
)

// transaction is rows that are not committed. It is guarded by the database's mu, because a handler may write from several
// goroutines.
type transaction struct {
	rows    []string
	spoiled bool // a part of what was to be written whole may be missing
	over    bool
}

// InTx runs fn in a transaction, which [Store.Insert] then writes through on the context that fn gets. What fn writes is undone when it
// returns an error or does not return, and its error is returned.
//
// In the handler of a Leased command it is the business transaction, which is opened for fn where none is open, and stays open until
// the handler returns; it is committed together with the record. Where the key has been taken over, the error wraps
// [idempotency.ErrLeaseLost] and fn does not run. In the handler of an Atomic command, and within another InTx, fn runs in the
// transaction that is open already; if it fails there, that one cannot be committed any more
// ([idempotency.ErrTransactionAborted]). Everywhere else it is a transaction of its own, which is committed when fn has returned
// nil.
func (s *Store) InTx(ctx context.Context, fn func(ctx context.Context) error) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("memstore: %w", err)
	}
	tx, leave, err := s.enter(ctx)
	if err != nil {
		return err
	}
	ok := false
	defer func() {
		s.db.mu.Lock()
		defer s.db.mu.Unlock()
		leave(ok)
	}()
	if err = fn(context.WithValue(ctx, heldKey{s.db}, tx)); err == nil {
		err = s.sound(tx)
	}
	ok = err == nil
	return err
}

// enter gives the transaction in which a function is to run, and what is to be done when it has ended.
func (s *Store) enter(ctx context.Context) (tx *transaction, leave func(ok bool), err error) {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	switch held := ctx.Value(heldKey{s.db}).(type) {
	case *attempt:
		tx = &held.tx
		held.used = held.used || !tx.over
	case *transaction:
		tx = held
	case *lease:
		if tx, err = held.begin(); err != nil {
			return nil, nil, err
		}
		if !held.running {
			held.running = true
			return tx, held.leave, nil
		}
	default:
		tx = new(transaction)
		return tx, func(ok bool) {
			tx.over = true
			if ok {
				s.db.rows = append(s.db.rows, tx.rows...)
			}
		}, nil
	}
	if tx.over {
		return nil, nil, errEnded
	}
	return tx, func(ok bool) { tx.spoiled = tx.spoiled || !ok }, nil
}

// sound gives what stands in the way of committing a transaction.
func (s *Store) sound(tx *transaction) error {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	switch {
	case tx.over:
		return errEnded
	case tx.spoiled:
		return fmt.Errorf("memstore: a function that was given to InTx has failed in it: %w", idempotency.ErrTransactionAborted)
	}
	return nil
}
