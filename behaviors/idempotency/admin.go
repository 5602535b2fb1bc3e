package idempotency

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/tekil-go/tekil/requestctx"
)

// AdminConfig is what an [Admin] needs.
type AdminConfig struct {
	// Store keeps the records. It must be set.
	Store Store
	// Logger gets a line for everything that is changed: what, which record, by whom and why. It must be set.
	Logger *zap.Logger
}

// Admin is for support: it answers "was he charged twice?" by showing records, and mends what no retry can. It is behind no
// authorisation of its own. It is safe for concurrent use. Make it with [NewAdmin].
type Admin struct{ cfg AdminConfig }

// NewAdmin makes an Admin.
func NewAdmin(cfg AdminConfig) (*Admin, error) {
	if cfg.Store == nil {
		return nil, errors.New("idempotency: AdminConfig.Store is not set")
	}
	if cfg.Logger == nil {
		return nil, errors.New("idempotency: AdminConfig.Logger is not set; what an administrator changes has to be on record")
	}
	return &Admin{cfg}, nil
}

// maxFound bounds what a search gives.
const maxFound = 100

// Find gives the records that a search asks for, the youngest first and at most 100. All but a search by id read the
// whole table unless the database has an index for it; pgstore and sqlitestore say how to make one.
func (a *Admin) Find(ctx context.Context, q Search) ([]Stored, error) {
	if q.IsZero() {
		return nil, errors.New("idempotency: a search needs an id, a key, an external reference, a draft, a request id, or what is stuck")
	}
	return a.cfg.Store.Find(ctx, q, maxFound)
}

// Count counts all records by operation, state, whether they are stuck, and whether they have expired; in that order. It reads the
// whole table: give ctx a deadline.
func (a *Admin) Count(ctx context.Context) ([]Count, error) {
	counts, err := a.cfg.Store.Count(ctx)
	slices.SortFunc(counts, func(a, b Count) int {
		return cmp.Or(cmp.Compare(a.Operation, b.Operation), cmp.Compare(a.State, b.State), compareBools(a.Stuck, b.Stuck), compareBools(a.Expired, b.Expired))
	})
	return counts, err
}

func compareBools(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// Get gives the record of a scope, or nil.
func (a *Admin) Get(ctx context.Context, s Scope) (*Stored, error) {
	found, err := a.cfg.Store.Find(ctx, Search{ID: s.ID()}, 1)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	if found[0].Scope != s {
		return nil, &RecordError{Command: s.Command()}
	}
	return &found[0], nil
}

// Intervention is why a person changes a record.
type Intervention struct {
	// By is who does it. It must be set.
	By string
	// Reason is why. It must be set, and is logged; it must hold no secret and no personal data.
	Reason string
	// Seen is the attempt that the person saw in the record ([Record.Attempt]) when the decision was made, which may be minutes ago. A record
	// that another attempt has taken or changed since is refused. Zero: only what changes while the record is being changed is found.
	Seen AttemptID
	// LiveLease allows [Admin.Release] to take the key from an attempt whose lease is not over. Such an attempt is most likely at
	// work: what it does outside is done, and what it writes is refused.
	LiveLease bool
}

// AdminError is returned when a record is not in a state in which it could be changed as asked.
type AdminError struct {
	// Action is "release" or "erase".
	Action string
	// Reason says what stands in the way.
	Reason string
}

func (e *AdminError) Error() string { return "idempotency: " + e.Action + ": " + e.Reason }

// Code is the outcome code of the error.
func (*AdminError) Code() string { return "IDEMPOTENCY_ADMIN_REFUSED" }

// Release frees a key that is stuck: one in progress whose attempt has died, or one that has failed too often. The next request with
// the same payload runs, its count of attempts begins anew, and an attempt that still holds the key can commit nothing more.
// Other payloads stay refused. The record is not removed, because with it would go what is known of the intent.
//
// A completed record is refused, and so is one whose lease is not over, unless i.LiveLease is set. Where the record has changed
// since it was read the error is an [*AdminError] as well: look again.
func (a *Admin) Release(ctx context.Context, id ID, i Intervention) error {
	const action = "release"
	rec, err := a.intervene(ctx, action, id, i)
	switch {
	case err != nil:
		return err
	case rec.State == Completed:
		return &AdminError{action, "the record is completed: its outcome is known and is what every retry gets"}
	case rec.State == InProgress && rec.LeaseLeft > 0 && !i.LiveLease:
		return &AdminError{action, "its lease is not over: an attempt is most likely at work; wait, or say that it is meant (Intervention.LiveLease)"}
	}
	return a.change(ctx, action, rec, i, a.cfg.Store.Free, zap.String("external_ref", rec.ExternalRef), zap.String("draft_id", rec.DraftID))
}

// Erase takes the result, the external reference and the draft out of a record, for a request to be forgotten. Key and hash stay, so that
// the intent is not done again: until the record has expired and is purged, its key is answered with an [*ExpiredError]. A record in progress is
// refused. The line in the log holds the key and scope, which stay, and nothing of what was erased. What other tables and older lines of the log hold is
// the application's to erase.
func (a *Admin) Erase(ctx context.Context, id ID, i Intervention) error {
	const action = "erase"
	rec, err := a.intervene(ctx, action, id, i)
	switch {
	case err != nil:
		return err
	case rec.State == InProgress:
		return &AdminError{action, "the record is in progress and has no result yet; wait, or release it first"}
	}
	return a.change(ctx, action, rec, i, a.cfg.Store.Erase)
}

func (a *Admin) intervene(ctx context.Context, action string, id ID, i Intervention) (*Stored, error) {
	if strings.TrimSpace(i.By) == "" || strings.TrimSpace(i.Reason) == "" {
		return nil, &AdminError{action, "who does it and why must be said (Intervention.By, Intervention.Reason)"}
	}
	found, err := a.cfg.Store.Find(ctx, Search{ID: id}, 1)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, &AdminError{action, "there is no such record"}
	}
	if i.Seen != (AttemptID{}) && i.Seen != found[0].Attempt {
		return nil, &AdminError{action, changed}
	}
	return &found[0], nil
}

// changed is said where the record is not the one that was looked at.
const changed = "the record has changed since it was read; look again"

func (a *Admin) change(ctx context.Context, action string, rec *Stored, i Intervention, do func(context.Context, ID, AttemptID) (bool, error), more ...zap.Field) error {
	done, err := do(ctx, rec.ID, rec.Attempt)
	line := []zap.Field{ // nothing that Erase takes out of a record
		zap.String("action", action), zap.String("by", i.By), zap.String("reason", i.Reason),
		zap.String("tenant", rec.Scope.Tenant), zap.String("client", rec.Scope.Client), zap.String("operation", rec.Scope.Operation),
		zap.String("key", rec.Scope.Key), zap.String("state", string(rec.State)), zap.Int("attempts", rec.Attempts),
		zap.Bool("live_lease", rec.LeaseLeft > 0),
	}
	line = append(line, more...)
	switch {
	case err != nil:
		a.cfg.Logger.Error("idempotency: an intervention failed", append(line, zap.Error(err))...)
		return err
	case !done:
		return &AdminError{action, changed}
	}
	a.cfg.Logger.Warn("idempotency: a person changed a record", line...)
	return nil
}

// Kept says what a record still holds of an outcome, without showing it.
type Kept string

const (
	// KeptNothing: there is no outcome, because the record is not completed.
	KeptNothing Kept = ""
	// KeptResult: the result, as it was given.
	KeptResult Kept = "result"
	// KeptSealed: the result, encrypted ([SealResult]).
	KeptSealed Kept = "sealed"
	// KeptRefusal: a final refusal; its code is [Record.RefusalCode].
	KeptRefusal Kept = "refusal"
	// KeptOmitted: that the work was done, and by the policy or for its size not what came of it.
	KeptOmitted Kept = "omitted"
	// KeptErased: that there was an outcome. It was erased, or buried as a tombstone when the record had expired.
	KeptErased Kept = "erased"
)

// Kept says what the record still holds of its outcome.
func (r *Record) Kept() Kept {
	switch {
	case r.State != Completed:
		return KeptNothing
	case r.ResultType == tombstoneType:
		return KeptErased
	case r.ResultType == omittedType:
		return KeptOmitted
	case r.Outcome == Refusal:
		return KeptRefusal
	case strings.HasPrefix(r.ResultType, sealedForm+"/"):
		return KeptSealed
	}
	return KeptResult
}

// RefusalCode is the application's code of the refusal that the record holds; "" where it holds none, or none that can be read.
func (r *Record) RefusalCode() string {
	if r.Kept() != KeptRefusal {
		return ""
	}
	refused, _, err := decodeRefusal("", r.Result)
	if err != nil {
		return ""
	}
	return refused.RefusalCode
}

// OperationState says how far an operation has come.
type OperationState string

const (
	// OperationInProgress: an attempt is at work.
	OperationInProgress OperationState = "in_progress"
	// OperationCompleted: it is done and Result holds what came of it.
	OperationCompleted OperationState = "completed"
	// OperationRefused: it was refused for good, and Refusal says why.
	OperationRefused OperationState = "refused"
	// OperationUnknown: no attempt is at work and none has said how it ended, or the last one failed without having done anything.
	// Sending the request again with the same key goes on with it or finds out.
	OperationUnknown OperationState = "unknown"
	// OperationGone: it was done, and what came of it is no longer kept, or never was.
	OperationGone OperationState = "gone"
)

// Operation is an intent as a caller sees it who has to ask later.
type Operation struct {
	// ID is what the caller was given.
	ID string
	// Command is the command's name.
	Command string
	State   OperationState
	// Result is the result as it is stored, JSON, when State is OperationCompleted and the result is not sealed.
	Result json.RawMessage
	// Sealed is true when the result is stored encrypted ([SealResult]), so that Result is nil: only the stage opens it, for the same
	// request sent again with its key.
	Sealed bool
	// Refusal is set when State is OperationRefused. Its Data is nil where they are sealed or not stored.
	Refusal *RefusedError
	// OriginalRequestID is the id of the attempt that did or does the work.
	OriginalRequestID string
	// ExternalRef is the reference that the handler has set, if any.
	ExternalRef string
	// CreatedAt is when the intent was first met.
	CreatedAt time.Time
}

// FindOperation gives the operation that a caller was told of, or nil where there is none under that id: also where it belongs to
// another client or tenant than the request in ctx says, and when its record has expired or was removed. It tells who may ask by
// scope alone; whether the caller may still see the result of the command is for the application's guards, which the caller of
// FindOperation has to ask.
func FindOperation(ctx context.Context, store Store, operationID string) (*Operation, error) {
	id, ok := ParseOperation(operationID)
	scope := requestctx.From(ctx).Scope()
	if !ok || scope.Client == "" {
		return nil, nil
	}
	found, err := store.Find(ctx, Search{ID: id}, 1)
	if err != nil {
		return nil, &StoreError{Command: "operation", Err: err}
	}
	if len(found) == 0 || found[0].Scope.Client != scope.Client || found[0].Scope.Tenant != scope.Tenant || found[0].Scope.ID() != id {
		return nil, nil
	}
	rec := found[0]
	op := &Operation{
		ID: operationID, Command: rec.Scope.Command(), State: OperationUnknown,
		OriginalRequestID: rec.OriginRequestID, ExternalRef: rec.ExternalRef, CreatedAt: rec.CreatedAt,
	}
	switch {
	case rec.State == InProgress && rec.LeaseLeft > 0:
		op.State = OperationInProgress
	case rec.Expired:
		return nil, nil
	case rec.State == Completed:
		if err := op.completed(&rec.Record); err != nil {
			return nil, err
		}
	}
	return op, nil
}

// completed fills in what came of it.
func (op *Operation) completed(rec *Record) (err error) {
	switch rec.Kept() {
	case KeptOmitted, KeptErased:
		op.State = OperationGone
	case KeptRefusal:
		if op.Refusal, _, err = decodeRefusal(op.Command, rec.Result); err != nil {
			return &ResultError{Command: op.Command, Stored: true, Err: err}
		}
		op.State = OperationRefused
	case KeptSealed:
		op.State, op.Sealed = OperationCompleted, true
	default:
		op.State, op.Result = OperationCompleted, json.RawMessage(rec.Result)
	}
	return nil
}
