package idempotency

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"
)

// PurgerConfig is what a [Purger] needs. The zero value of everything but Store is usable.
type PurgerConfig struct {
	// Store keeps the records. It must be set.
	Store Store
	// Logger gets a line when something was removed and when a purge failed. Nil logs nothing.
	Logger *zap.Logger
	// Every is the pause between two rounds. Zero means 1 minute.
	Every time.Duration
	// Batch is how many records are removed in one transaction. Zero means 2000.
	Batch int
	// Pause is the pause between two batches of one round, which leaves the database to the commands. Zero means 20 milliseconds; a
	// negative value none.
	Pause time.Duration
	// Grace is how long a record is kept after it has expired, against a clock of the database that steps back. Zero means 5
	// minutes; a negative value none. A record that has expired counts as absent all the same (rule rec-10).
	Grace time.Duration
	// Remember is how long the bare key of a command with AfterExpiry [Tombstone] is kept after its record has expired. Zero means
	// for good, which is 292 years.
	Remember time.Duration
}

// forGood is as long as a time.Duration can be: 292 years.
const forGood = time.Duration(1<<63 - 1)

// Purger removes expired records in the background (rule rec-10). Any number of them may run beside one another on one database, in
// one process or in each replica: each takes records that no other has locked. Make it with [NewPurger].
type Purger struct{ cfg PurgerConfig }

// NewPurger makes a purger. It reports settings that make no sense.
func NewPurger(cfg PurgerConfig) (*Purger, error) {
	switch {
	case cfg.Store == nil:
		return nil, errors.New("idempotency: PurgerConfig.Store is not set")
	case cfg.Every < 0:
		return nil, errors.New("idempotency: PurgerConfig.Every is negative")
	case cfg.Batch < 0:
		return nil, errors.New("idempotency: PurgerConfig.Batch is negative")
	case cfg.Remember < 0:
		return nil, errors.New("idempotency: PurgerConfig.Remember is negative")
	}
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	if cfg.Every == 0 {
		cfg.Every = time.Minute
	}
	if cfg.Batch == 0 {
		cfg.Batch = 2000
	}
	if cfg.Pause == 0 {
		cfg.Pause = 20 * time.Millisecond
	}
	if cfg.Grace == 0 {
		cfg.Grace = 5 * time.Minute
	}
	cfg.Grace = max(cfg.Grace, 0)
	if cfg.Remember == 0 {
		cfg.Remember = forGood
	}
	return &Purger{cfg}, nil
}

// Run purges until ctx ends, and then returns when the batch that is under way has been given up or is done. A round that fails is
// logged and made again after Every. It always returns nil, so it fits an errgroup.
func (p *Purger) Run(ctx context.Context) error {
	for {
		if _, err := p.Once(ctx); err != nil && ctx.Err() == nil {
			p.cfg.Logger.Warn("idempotency: a purge failed and is made again later", zap.Error(err))
		}
		if !sleep(ctx, never, p.cfg.Every) {
			return nil
		}
	}
}

// Once purges until nothing is left that has expired, and says how much that was. When it fails or ctx ends, what it had done
// by then stays done and is told.
func (p *Purger) Once(ctx context.Context) (total Purged, err error) {
	defer func() {
		if total != (Purged{}) {
			p.cfg.Logger.Info("idempotency: purged", zap.Int("removed", total.Removed), zap.Int("buried", total.Buried))
		}
	}()
	for {
		done, err := p.cfg.Store.Purge(ctx, PurgeBatch{Limit: p.cfg.Batch, Grace: p.cfg.Grace, Remember: p.cfg.Remember})
		total.Removed += done.Removed
		total.Buried += done.Buried
		if err != nil {
			return total, err
		}
		if done.Removed < p.cfg.Batch && done.Buried < p.cfg.Batch {
			return total, nil
		}
		if p.cfg.Pause > 0 && !sleep(ctx, never, p.cfg.Pause) {
			return total, ctx.Err()
		}
	}
}
