package chaos

import (
	"slices"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/bus"
)

// payloads is how many different payloads the clients send under one key.
const payloads = 2

// group is a command with its policy, and what can be expected of it.
type group struct {
	name    string
	outside bool // its handlers call the outside world
	// atomic: nothing is recorded before the outcome, so a failed attempt does not bind its key to its payload.
	atomic bool
	// rowless: the handlers write no order, so the outcome is written alone, without a business transaction.
	rowless bool
	// forgets: records expire and a key gets a new life, so promises are for one life.
	forgets bool
	// relaxed: a crash of the server may take the last claims back, and with them the payload that a key was bound to.
	relaxed bool
	bind    func(n *node, e *idempotency.Engine, g *group) (send, error)
}

var (
	unguarded = &group{name: UnguardedName, bind: bindUnguarded}

	groups = []*group{
		{name: "chaos.plain", bind: bind[plain]},
		{name: "chaos.impatient", outside: true, bind: bind[impatient]},
		{name: "chaos.reconciled", outside: true, bind: bindReconciled},
		{name: "chaos.refused", outside: true, bind: bind[refused]},
		{name: "chaos.rowless", rowless: true, bind: bind[rowless]},
		{name: "chaos.relaxed", relaxed: true, bind: bind[relaxed]},
		{name: "chaos.buried", bind: bind[buried]},
		{name: "chaos.expiring", forgets: true, bind: bind[expiring]},
		{name: "chaos.atomic", atomic: true, bind: bind[atomically]},
		unguarded,
	}
)

func groupOf(name string) *group {
	return groups[slices.IndexFunc(groups, func(g *group) bool { return g.name == name })]
}

// Placed is the result of all commands: the order's id.
type Placed struct {
	Order string `json:"order"`
}

// rules are a command's name and policy. They belong to a type, because a policy does.
type rules interface {
	rules() (bus.Name[Placed], idempotency.Policy)
}

// command is the command of a group.
type command[R rules] struct {
	Payload int `json:"payload"`
}

func (command[R]) CommandName() bus.Name[Placed] {
	var r R
	name, _ := r.rules()
	return name
}

func (command[R]) Idempotency() idempotency.Policy {
	var r R
	_, policy := r.rules()
	return policy
}

type (
	plain      struct{}
	impatient  struct{}
	reconciled struct{}
	refused    struct{}
	rowless    struct{}
	relaxed    struct{}
	buried     struct{}
	expiring   struct{}
	atomically struct{}
)

const ms = time.Millisecond

func (plain) rules() (bus.Name[Placed], idempotency.Policy) {
	return "chaos.plain", idempotency.Policy{Mode: idempotency.Leased, Lease: 30 * ms, Wait: -1, MaxAttempts: -1}
}

func (impatient) rules() (bus.Name[Placed], idempotency.Policy) {
	return "chaos.impatient", idempotency.Policy{Mode: idempotency.Leased, Lease: 15 * ms, Wait: 30 * ms, MaxAttempts: 4, Deadline: 60 * ms}
}

func (reconciled) rules() (bus.Name[Placed], idempotency.Policy) {
	return "chaos.reconciled", idempotency.Policy{Mode: idempotency.Leased, Lease: 20 * ms, Wait: -1, MaxAttempts: -1, Takeover: idempotency.Reconcile}
}

func (refused) rules() (bus.Name[Placed], idempotency.Policy) {
	return "chaos.refused", idempotency.Policy{Mode: idempotency.Leased, Lease: 60 * ms, Wait: 20 * ms, MaxAttempts: -1, Takeover: idempotency.Refuse}
}

func (rowless) rules() (bus.Name[Placed], idempotency.Policy) {
	return "chaos.rowless", idempotency.Policy{Mode: idempotency.Leased, Lease: 15 * ms, Wait: -1, MaxAttempts: -1}
}

func (relaxed) rules() (bus.Name[Placed], idempotency.Policy) {
	return "chaos.relaxed", idempotency.Policy{Mode: idempotency.Leased, Lease: 30 * ms, Wait: -1, MaxAttempts: -1, RelaxedClaim: true}
}

func (buried) rules() (bus.Name[Placed], idempotency.Policy) {
	return "chaos.buried", idempotency.Policy{Mode: idempotency.Leased, Lease: 30 * ms, Wait: -1, MaxAttempts: -1,
		Retention: 400 * ms, ShortRetention: true, Deadline: 200 * ms, AfterExpiry: idempotency.Tombstone}
}

func (expiring) rules() (bus.Name[Placed], idempotency.Policy) {
	return "chaos.expiring", idempotency.Policy{Mode: idempotency.Leased, Lease: 20 * ms, Wait: -1, MaxAttempts: -1,
		Retention: 150 * ms, ShortRetention: true, Deadline: 100 * ms}
}

func (atomically) rules() (bus.Name[Placed], idempotency.Policy) {
	return "chaos.atomic", idempotency.Policy{Wait: 20 * ms}
}
