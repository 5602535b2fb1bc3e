package registrytest

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

// Dispatch is what a [Spy] keeps of one dispatch. Nothing of the payload or of the key is in it.
type Dispatch struct {
	// Name is the command's or query's stable name.
	Name string
	// Query is true for a query, and Check where the dispatch only validated (bus.Check).
	Query, Check bool
	// Keyed is true when the request brought a key, whether or not the command looks at one.
	Keyed bool
	// State is what the idempotency stage made of it.
	State requestctx.State
	// Code is the outcome code of the error, "ERROR" for one without a code, and empty for a success.
	Code string
	// Panicked is true when the dispatch ended in a panic.
	Panicked bool
}

// Spy notes what is dispatched, so that a test of an edge can say that a request sent one command and nothing else: put it into the
// Observers of registry.Config. The zero Spy is ready, and it is safe for concurrent use. It must not be copied.
type Spy struct {
	mu   sync.Mutex
	seen []Dispatch
}

var _ bus.Observer = (*Spy)(nil)

// Started notes nothing: what a dispatch became is known at its end.
func (*Spy) Started(ctx context.Context, _ bus.Invocation) context.Context { return ctx }

// Ended notes a dispatch.
func (s *Spy) Ended(ctx context.Context, inv bus.Invocation, err error, panicked bool) {
	req := requestctx.From(ctx)
	d := Dispatch{Name: inv.Name, Query: inv.Query, Check: inv.Check, Keyed: !req.Key().IsZero(), State: req.Outcome().State, Panicked: panicked}
	if err != nil {
		d.Code = "ERROR"
		var coded interface{ Code() string }
		if errors.As(err, &coded) {
			d.Code = coded.Code()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, d)
}

// Dispatches gives what was dispatched since the last call, in the order in which it ended, and forgets it.
func (s *Spy) Dispatches() []Dispatch {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := slices.Clone(s.seen)
	s.seen = nil
	return seen
}
