package idempotency

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

// What a record's result type says of its result. A result and a sealed one have a slash and the version of the contract behind
// the name; the Go type has no part in it and may be renamed.
const (
	resultForm    = "result"
	sealedForm    = "sealed"
	refusalType   = "refusal/1"
	omittedType   = "omitted" // the work was done and its result is not there
	tombstoneType = "tombstone"
)

// hashAlgorithm is the version of the canonical form and of SHA-256 over it. A record's hash version is this times a thousand plus
// the version of the command's contract. For a command with secret fields the version of the secret is added to this, at most 30,
// which is as much as 16 bits hold. A change of the algorithm therefore has to begin above that.
const hashAlgorithm = 1

func hashVersion(secret, contract int) int16 { return int16((hashAlgorithm+secret)*1000 + contract) }

// Plan is how a command is protected, as Build found it: for people, and for a review of what changed.
type Plan struct {
	// Marked is true for a command that carries the mark. For others the rest is zero.
	Marked bool
	// Policy is the command's policy, as the deployment has tuned it and with its defaults filled in.
	Policy Policy
	// Tuned names the fields of Policy that Settings.Adjust has changed, nil for none.
	Tuned []string
	// Warnings are what Build noticed and lets pass.
	Warnings []string
}

// Stage puts the idempotency stage of the engine before h, as the command C asks for it by its type. A command without the
// mark gets no stage at all: it is not touched, needs no key and costs nothing (rule pipe-4).
//
// The error joins every problem found: a marker that only the pointer has or whose signature is another, a policy out of its
// bounds, a payload that has no safe fingerprint, a result that does not survive encoding, a missing store or secret.
func Stage[C bus.Command[R], R any](e *Engine, h bus.Handler[C, R]) (bus.Claimed[C, R], Plan, error) {
	return StageWith(e, h, Settings[C, R]{})
}

// Settings are what a command needs besides its type. The zero Settings are right for most.
type Settings[C bus.Command[R], R any] struct {
	// Reconcile is for a command whose policy says Takeover [Reconcile], and nil for every other. It looks for what an earlier
	// attempt may have done and gives its result; found is false where there is nothing, and an error is read as one of the
	// handler's. It runs on the handler's context, may open the business transaction, and is asked in every attempt but the first,
	// and when the first is made again.
	Reconcile func(context.Context, C) (res R, found bool, err error)
	// Adjust changes the policy for one deployment, say by environment variables; nil changes nothing. It gets a copy of the policy
	// as the type gives it, before zero fields mean their defaults. It may change Retention, ShortRetention, Wait, Deadline,
	// KeyOptional, Lease, MaxAttempts, RelaxedClaim and ResultLimit. The rest is part of what the command means and the same
	// everywhere: a change of it is a problem. So is Adjust for a command without the mark.
	Adjust func(*Policy)
}

// StageWith is [Stage] with [Settings].
func StageWith[C bus.Command[R], R any](e *Engine, h bus.Handler[C, R], set Settings[C, R]) (bus.Claimed[C, R], Plan, error) {
	t := reflect.TypeFor[C]()
	var zero C
	marked, warnings, err := marks(t)
	if !marked && set.Reconcile != nil {
		err = errors.Join(err, errors.New("it has a reconciler and is not marked idempotent"))
	}
	if !marked && set.Adjust != nil {
		err = errors.Join(err, errors.New("its policy is adjusted for this deployment and it is not marked idempotent, so it has none"))
	}
	if err != nil || !marked {
		return bus.Claim(h, nil), Plan{Warnings: warnings}, err
	}
	if t.Kind() != reflect.Struct { // the zero value of a pointer or an interface has no policy and no name to read
		return bus.Claim(h, nil), Plan{Marked: true, Warnings: warnings}, fmt.Errorf("its kind is %s; a marked command is a plain struct, sent by value", t.Kind())
	}
	var policy Policy
	if p, ok := any(zero).(WithPolicy); ok {
		policy = p.Idempotency()
	}
	policy, tuned, adjustErr := policy.adjusted(set.Adjust)
	policy = policy.withDefaults()
	more, err := policy.validate()
	plan := Plan{Marked: true, Policy: policy, Tuned: tuned, Warnings: append(warnings, more...)}
	problems := []error{adjustErr, err, checkResult(reflect.TypeFor[R]())}
	switch wants := policy.Mode == Leased && policy.Takeover == Reconcile; {
	case wants && set.Reconcile == nil:
		problems = append(problems, errors.New("its policy says Takeover Reconcile and no reconciler is registered; add registry.Reconcile to its registration"))
	case !wants && set.Reconcile != nil:
		problems = append(problems, errors.New("it has a reconciler and its policy does not say Mode Leased and Takeover Reconcile, so it would never be asked"))
	}
	form := resultForm
	if policy.Results == SealResult {
		if form = sealedForm; e.cfg.Sealer == nil {
			problems = append(problems, errors.New("its policy says SealResult and no sealer is set (Config.Sealer, such as idempotency.NewSealer makes)"))
		}
	}
	if e.cfg.Store == nil {
		problems = append(problems, errors.New("it is marked idempotent and no store is set"))
	}
	enc, err := compileEncoder(t)
	if err != nil {
		problems = append(problems, err)
	} else if enc.hasSecrets() && len(e.cfg.Secrets) == 0 {
		problems = append(problems, errors.New("it has fields tagged idempotency:\"secret\" and no secret is set (Config.Secrets, at least 32 bytes)"))
	}
	if err := errors.Join(problems...); err != nil {
		return bus.Claim(h, nil), plan, err
	}
	s := &stage[C, R]{engine: e, name: string(zero.CommandName()), policy: policy, enc: enc, reconcile: set.Reconcile, resultType: fmt.Sprintf("%s/%d", form, policy.Version)}
	if enc.hasSecrets() {
		s.secrets = e.cfg.Secrets
		s.secret = s.secrets[0]
	}
	return bus.Claim(h, s.run), plan, nil
}

// stage is the idempotency stage of one marked command.
type stage[C bus.Command[R], R any] struct {
	engine     *Engine
	name       string
	policy     Policy
	enc        *encoder
	secrets    []Secret // nil for a command without secret fields
	secret     Secret   // the first of them
	reconcile  func(context.Context, C) (R, bool, error)
	resultType string
}

// fingerprintVersion gives what a record's hash version says of how its hash was made, if this program can make one like it.
func (s *stage[C, R]) fingerprintVersion(hash int16) (contract int, key []byte, ok bool) {
	contract, secret := int(hash%1000), int(hash/1000)-hashAlgorithm
	if s.secrets == nil {
		return contract, nil, secret == 0
	}
	for _, known := range s.secrets {
		if known.Version == secret {
			return contract, known.Key, true
		}
	}
	return 0, nil, false
}

func (s *stage[C, R]) run(ctx context.Context, cmd C, next bus.Handler[C, R]) (R, error) {
	var none R
	req := requestctx.From(ctx)
	key := req.Key().String()
	label, _ := ctx.Value(labelKey{}).(string)
	if parent, ok := ctx.Value(activeKey{s.engine}).(*active); ok {
		nested, childKey, err := s.inside(parent, label)
		switch {
		case err != nil:
			req.Report(requestctx.Outcome{State: requestctx.StateRefused})
			return none, err
		case nested:
			req.Report(requestctx.Outcome{State: requestctx.StateNested})
			return next(ctx, cmd)
		}
		key = childKey
	} else if label != "" && key != "" {
		key = derived("child/1", req.Scope().Tenant, req.Scope().Client, req.Source(), key, s.name, label)
	}
	d, err := s.dispatch(req, &cmd, key)
	if err != nil {
		req.Report(requestctx.Outcome{State: requestctx.StateRefused})
		return none, err
	}
	if d == nil {
		req.Report(requestctx.Outcome{State: requestctx.StateUnprotected})
		return next(ctx, cmd)
	}
	// own is what the first caller gets, where that is this very dispatch.
	var own R
	keep := func(res R) (stored []byte, err error) {
		own, stored, err = s.stored(d, res)
		if d.policy.Mode == Leased {
			d.unencodable = err // it does not undo what was done outside
			return stored, nil
		}
		return stored, err
	}
	if s.reconcile != nil {
		d.reconcile = func(ctx context.Context) (result []byte, found bool, err error) {
			res, found, err := s.reconcile(ctx, cmd)
			if err != nil || !found {
				return nil, false, err
			}
			result, err = keep(res)
			return result, true, err
		}
	}
	a, err := d.run(ctx, func(ctx context.Context) ([]byte, error) {
		res, err := next(ctx, cmd)
		if err != nil {
			return nil, err
		}
		return keep(res)
	})
	if err != nil {
		return none, err
	}
	switch {
	case a.own && d.refused != nil:
		return none, d.refused
	case a.own:
		return own, nil
	case a.rec.Outcome == Refusal:
		refused, err := d.refusalOf(a.rec)
		if err != nil {
			return none, s.unreadable(req, err)
		}
		return none, refused
	}
	res, err := s.resultOf(d, a.rec)
	if err != nil {
		return none, s.unreadable(req, err)
	}
	return res, nil
}

// stored gives what the record will hold of a result, nil for nothing, and what the first caller gets: what every replay will make
// of it, or all of it where the record does not hold it.
func (s *stage[C, R]) stored(d *dispatch, res R) (own R, data []byte, err error) {
	d.refused, d.resultType = nil, omittedType
	if s.policy.Results == OmitResult {
		return res, nil, nil
	}
	own, data, err = encode[R](s.name, res)
	if err != nil || d.tooLarge(data) {
		return own, nil, err
	}
	if s.policy.Results == SealResult {
		if data, err = d.seal(data, s.resultType); err != nil {
			return own, nil, &ResultError{Command: s.name, Err: err}
		}
	}
	d.resultType = s.resultType
	return own, data, nil
}

// resultOf reads the result of a record.
func (s *stage[C, R]) resultOf(d *dispatch, rec *Record) (res R, err error) {
	data := rec.Result
	form, number, _ := strings.Cut(rec.ResultType, "/")
	version, err := strconv.Atoi(number)
	if err != nil || form != resultForm && form != sealedForm {
		return res, errors.New("it is stored in a form that this version does not know")
	}
	if form == sealedForm {
		if data, err = d.open(data, rec.ResultType, rec); err != nil {
			return res, err
		}
	}
	if version != s.policy.Version {
		return upcast[R](version, data)
	}
	return decode[R](data)
}

// inside decides about a command that is sent from the handler of another marked one. Where that one holds an open transaction,
// it runs in it and under its record: one intent, one record, one transaction. Where there is none yet, it has a record and a
// key of its own.
func (s *stage[C, R]) inside(parent *active, label string) (nested bool, key string, err error) {
	switch {
	case parent.returned.Load():
		return false, "", &HandlerError{Command: s.name, Reason: "it was sent on the context of another command's handler that has returned, so no record covers it; wait for what a handler starts, or give it a context that is not the handler's"}
	case !parent.transaction():
		key, err = parent.child(s.name, label)
		return false, key, err
	case s.policy.Mode == Leased:
		return false, "", &HandlerError{Command: s.name, Err: ErrLeasedInsideAtomic,
			Reason: "it is Leased and was sent inside the open transaction of " + parent.name + ", beside which its claim would be committed; send it before that transaction is opened, or make it Atomic"}
	}
	return true, "", nil
}

// unreadable reports a replay that came to nothing: the record stays as it is, and the caller has no outcome.
func (s *stage[C, R]) unreadable(req *requestctx.Request, err error) error {
	req.Report(requestctx.Outcome{State: requestctx.StateRefused, OriginalRequestID: req.Outcome().OriginalRequestID})
	return &ResultError{Command: s.name, Stored: true, Err: err}
}

// dispatch reads the request context. It gives nil without an error where the command may run without a key and has none.
func (s *stage[C, R]) dispatch(req *requestctx.Request, cmd *C, key string) (*dispatch, error) {
	if err := req.KeyErr(); err != nil {
		return nil, &KeyInvalidError{Command: s.name, Err: err}
	}
	if key == "" {
		if s.policy.KeyOptional {
			return nil, nil
		}
		return nil, &KeyMissingError{Command: s.name}
	}
	scope := Scope{Tenant: req.Scope().Tenant, Client: req.Scope().Client, Operation: s.name, Key: key}
	if scope.Client == "" {
		return nil, &ScopeError{Command: s.name, Missing: "client"}
	}
	if scope.Tenant == "" && s.engine.cfg.RequireTenant {
		return nil, &ScopeError{Command: s.name, Missing: "tenant"}
	}
	if src := req.Source(); src != "" {
		scope.Operation = src + " " + s.name
	}
	for _, part := range [...]struct{ name, value string }{{"client", scope.Client}, {"tenant", scope.Tenant}, {"source", scope.Operation}} {
		if storable(part.value) != part.value { // replacing characters here would make one scope of two
			return nil, &ScopeError{Command: s.name, Missing: part.name + " that can be stored (UTF-8 without NUL)"}
		}
	}
	in := fingerprintInput{Tenant: scope.Tenant, Command: s.name, ContractVersion: s.policy.Version, Resource: req.Resource()}
	hash, err := fingerprintOf(s.enc, in, cmd, s.secret.Key)
	if err != nil {
		return nil, err
	}
	return &dispatch{
		Engine: s.engine, name: s.name, policy: s.policy, req: req,
		claim: Claim{
			ID: scope.ID(), Scope: scope, Hash: hash, HashVersion: hashVersion(s.secret.Version, s.policy.Version),
			Attempt: newAttemptID(), OriginRequestID: storable(req.ID()), OriginTrace: traceOf(req), DraftID: storable(req.DraftID()),
			Retention: s.policy.Retention, AfterExpiry: s.policy.AfterExpiry, Isolation: s.policy.Isolation,
			Lease: s.policy.Lease, MaxAttempts: s.policy.MaxAttempts, NoTakeover: s.policy.Takeover == Refuse, Relaxed: s.policy.RelaxedClaim,
		},
		rehash: func(version int16) ([32]byte, bool) {
			contract, key, ok := s.fingerprintVersion(version)
			if !ok {
				return [32]byte{}, false
			}
			in := in
			in.ContractVersion = contract
			hash, err := fingerprintOf(s.enc, in, cmd, key)
			return hash, err == nil
		},
	}, nil
}

// traceOf is the request's traceparent. What is none has another length, and is not stored.
func traceOf(req *requestctx.Request) string {
	if t := req.Trace(); len(t) == len("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01") {
		return storable(t)
	}
	return ""
}

// storable is s as every database takes it: PostgreSQL refuses NUL and what is not UTF-8, and would do so after the work.
func storable(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

// encode gives the stored form of a result and what a replay will make of it, before anything is committed: the first
// caller gets the same value as every later one, and a result that cannot be read back is found in time.
func encode[R any](name string, res R) (own R, data []byte, err error) {
	defer func() {
		if recover() != nil { // a marshaller of the application's
			own, data, err = *new(R), nil, &ResultError{Command: name, Err: errors.New("a marshaller panicked")}
		}
	}()
	if data, err = json.Marshal(&res); err == nil { // the address: a method with a pointer receiver counts as well
		own, err = decode[R](data)
	}
	if err != nil {
		return own, nil, &ResultError{Command: name, Err: err}
	}
	return own, data, nil
}

func decode[R any](data []byte) (res R, err error) {
	defer func() {
		if recover() != nil {
			err = errors.New("an unmarshaller panicked")
		}
	}()
	err = json.Unmarshal(data, &res)
	return res, err
}

// ResultReader reads what an older version of the contract has stored. It is implemented by the pointer to a result type, or by the
// result itself where that is a pointer, and is asked in a replay whose record was made under another [Policy].Version. Without it
// such a result is decoded like one of the same version: members that are gone are dropped, new ones are zero.
//
// version is that of the record, and the higher one after a deployment was rolled back. stored is the JSON of the result, opened
// where it was sealed; it must not be changed, and what is kept of it must be copied. The receiver is zero. The error says that this
// version cannot read it: the caller gets a [*ResultError] with Stored set, the handler is not run, and the record stays as it is, so
// the same key works once a version is deployed that can. A stored null of a result that is a pointer is nil, and nobody is asked.
type ResultReader interface {
	ReadResult(version int, stored []byte) error
}

// upcast reads a result that another version of the contract has stored.
func upcast[R any](version int, data []byte) (res R, err error) {
	reader, ok := any(&res).(ResultReader)
	if t := reflect.TypeFor[R](); !ok && t.Kind() == reflect.Pointer && string(data) != "null" {
		fresh := reflect.New(t.Elem())
		if reader, ok = fresh.Interface().(ResultReader); ok {
			reflect.ValueOf(&res).Elem().Set(fresh)
		}
	}
	if !ok {
		return decode[R](data)
	}
	defer func() {
		if recover() != nil {
			err = errors.New("the reader of results of another version panicked")
		}
	}()
	err = reader.ReadResult(version, data)
	return res, err
}

// IsMarked reports whether the type C carries the mark, by [Marker] or [WithPolicy], on its value or its pointer. Queries
// must not.
func IsMarked[C any]() bool {
	_, byMarker := any(new(C)).(Marker)
	_, byPolicy := any(new(C)).(WithPolicy)
	return byMarker || byPolicy
}

var (
	markerType = reflect.TypeFor[Marker]()
	policyType = reflect.TypeFor[WithPolicy]()
)

// marks finds out whether t is marked, and what only looks like a mark: that is where protection is lost without a word.
func marks(t reflect.Type) (marked bool, warnings []string, err error) {
	marked = t.Implements(markerType) || t.Implements(policyType)
	pointer := reflect.PointerTo(t)
	var problems []error
	for i := range pointer.NumMethod() {
		m := pointer.Method(i)
		switch {
		case m.Name == "Idempotent" && !t.Implements(markerType), m.Name == "Idempotency" && !t.Implements(policyType):
			if pointer.Implements(markerType) && m.Name == "Idempotent" || pointer.Implements(policyType) && m.Name == "Idempotency" {
				problems = append(problems, fmt.Errorf("its method %s has a pointer receiver, so a command sent by value would not be protected; give it a value receiver", m.Name))
			} else {
				problems = append(problems, fmt.Errorf("its method %s has another signature than the mark (Idempotent() or Idempotency() idempotency.Policy), so it would not be protected", m.Name))
			}
		case m.Name != "Idempotent" && m.Name != "Idempotency" && looksLikeMark(m.Name) && !marked:
			warnings = append(warnings, fmt.Sprintf("its method %s looks like the mark Idempotent and is not: the command is not protected; write var _ idempotency.Marker = %s{} beside it", m.Name, t.Name()))
		}
	}
	return marked, warnings, errors.Join(problems...)
}

// looksLikeMark reports whether a method's name is the mark's up to case or two typing errors.
func looksLikeMark(name string) bool {
	name = strings.ToLower(name)
	for _, want := range [...]string{"idempotent", "idempotency", "isidempotent"} {
		if distance(name, want) <= 2 {
			return true
		}
	}
	return false
}

// distance is the number of characters to insert, delete or replace that turn a into b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
