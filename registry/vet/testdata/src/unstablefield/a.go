package unstablefield

import (
	. "commands"

	"context"
	"net/http"
	"time"

	"github.com/google/uuid"

	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/registry"
)

type Book struct {
	ID       string
	At       time.Time
	Received time.Time `json:"received" idempotency:"-"`
	Day      string
}

func (Book) CommandName() bus.Name[Placed] { return "book" }
func (Book) Idempotent()                   {}

// Rounded clears its time.
type Rounded struct{ At time.Time }

func (Rounded) CommandName() bus.Name[Placed] { return "rounded" }
func (Rounded) Idempotent()                   {}
func (r *Rounded) Normalize()                 { r.At = time.Time{} }

type Plain struct{ At time.Time }

func (Plain) CommandName() bus.Name[Placed] { return "plain" }

func serve(b *bus.Bus) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		bus.Send(ctx, b, Book{At: time.Now()})                        // want `At is another one in every attempt`
		bus.Send(ctx, b, Book{ID: uuid.NewString()})                  // want `ID is another one`
		bus.Send(ctx, b, Book{"", time.Now().UTC(), time.Time{}, ""}) // want `At is another one`
		bus.Send(ctx, b, Book{Received: time.Now()})
		bus.Send(ctx, b, Book{ID: r.PathValue("id"), Day: time.Now().Format("2006-01-02")})
		bus.Send(ctx, b, Rounded{At: time.Now()})
		bus.Send(ctx, b, Plain{At: time.Now()})

		id := uuid.New().String()
		cmd := Book{ID: id} // want `ID is another one`
		cmd.At = time.Now() // want `At is another one`
		cmd.Received = time.Now()
		bus.Send(ctx, b, cmd)

		other := Book{ID: r.PathValue("id")}
		other.Day = r.FormValue("day")
		bus.Send(ctx, b, other)
	}
}

// What an Atomic handler sends runs under its own record; what a Leased one sends has a key of its own.
func wire(r *registry.Registry, b *bus.Bus) {
	registry.Handle(r, func(ctx context.Context, cmd Place) (Placed, error) {
		return bus.Send(ctx, b, Book{At: time.Now()})
	})
	registry.Handle(r, func(ctx context.Context, cmd Pay) (Placed, error) {
		return bus.Send(ctx, b, Book{At: time.Now()}) // want `At is another one`
	})
	registry.Handle(r, func(ctx context.Context, cmd Book) (Placed, error) {
		cmd.At = time.Now() // the fingerprint has been taken
		return Placed{}, nil
	})
}
