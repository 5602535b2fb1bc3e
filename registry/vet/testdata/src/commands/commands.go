// Package commands has a command of each kind. A rule whose text or whose way depends on the package has commands of its own.
package commands

import (
	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/bus"
)

type Place struct {
	CartID string
	Amount int64
}

func (Place) CommandName() bus.Name[Placed] { return "orders.place" }
func (Place) Idempotent()                   {}

type Placed struct{ OrderID string }

type Pay struct{ Amount int64 }

func (Pay) CommandName() bus.Name[Placed]   { return "orders.pay" }
func (Pay) Idempotency() idempotency.Policy { return idempotency.Policy{Mode: idempotency.Leased} }

// Note carries no mark.
type Note struct{ Text string }

func (Note) CommandName() bus.Name[bus.None] { return "orders.note" }

// Later has a policy that cannot be read.
type Later struct{ CartID string }

func (Later) CommandName() bus.Name[Placed]   { return "orders.later" }
func (Later) Idempotency() idempotency.Policy { return policy }

var policy = idempotency.Policy{Mode: idempotency.Leased}
