package idempotency

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"encoding/hex"
	"strings"
	"time"
)

// Scope is where a key is unique (rule rec-8). The four parts are stored in columns of their own, never joined.
type Scope struct {
	// Tenant is "" where there is only one.
	Tenant string
	// Client is the authenticated principal or requestctx.Anonymous.
	Client string
	// Operation is the source of the request, where it has one, a space, and the command's name.
	Operation string
	// Key is the caller's key.
	Key string
}

// ID is the primary key of a record: 16 bytes made of its scope.
type ID [16]byte

// ID makes the record's id: SHA-256 over the length-prefixed parts, cut to 16 bytes. When the caller's key is a UUIDv7 or a
// ULID, its 48 bits of time come first, so that an index of millions of records is written at its end and not all over.
func (s Scope) ID() ID {
	buf := make([]byte, 0, 256)
	for _, part := range [...]string{s.Tenant, s.Client, s.Operation, s.Key} {
		buf = appendPart(buf, part)
	}
	sum := sha256.Sum256(buf)
	var id ID
	copy(id[:], sum[:])
	if ms, ok := keyTime(s.Key); ok {
		copy(id[:6], ms[:])
	}
	return id
}

// LockKey is the number for a database's advisory lock on the record: the last eight bytes of the id, because the first
// ones may hold a time that many ids share.
func (id ID) LockKey() int64 { return int64(binary.BigEndian.Uint64(id[8:])) }

// appendPart appends a part behind its length, so that no two lists of parts give the same bytes.
func appendPart(dst []byte, part string) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(part)))
	return append(dst, part...)
}

// crockford is the alphabet of a ULID.
var crockford = base32.NewEncoding("0123456789ABCDEFGHJKMNPQRSTVWXYZ").WithPadding(base32.NoPadding)

// keyTime gives the 48 bits of time in a UUIDv7 or a ULID.
func keyTime(key string) (ms [6]byte, ok bool) {
	switch len(key) {
	case 36:
		if key[8] != '-' || key[13] != '-' || key[18] != '-' || key[23] != '-' || key[14] != '7' || !strings.ContainsRune("89abAB", rune(key[19])) {
			return ms, false
		}
		var digits [12]byte
		copy(digits[:8], key[:8])
		copy(digits[8:], key[9:13])
		if _, err := hex.Decode(ms[:], digits[:]); err != nil {
			return ms, false
		}
		return ms, true
	case 26:
		// A ULID is 128 bits in 26 characters, so two zero bits stand before them; its first character is at most 7.
		if key[0] > '7' {
			return ms, false
		}
		raw, err := crockford.DecodeString(strings.ToUpper("000000" + key)) // 32 characters are 20 bytes: 4 of padding before the 16
		if err != nil {
			return ms, false
		}
		copy(ms[:], raw[4:10])
		return ms, true
	}
	return ms, false
}

// AttemptID is the random id of one dispatch: by it an attempt recognises its own record.
type AttemptID [16]byte

func newAttemptID() (id AttemptID) {
	_, _ = rand.Read(id[:]) // never fails: crypto/rand ends the program instead
	return id
}

// RecordState is the state of a stored record (rule rec-3). A key without a record is absent, which is no state.
type RecordState string

const (
	// InProgress: an attempt that works outside the record's transaction holds the key. Atomic commands never store it.
	InProgress RecordState = "in_progress"
	// Completed: the outcome is known and is replayed.
	Completed RecordState = "completed"
	// Failed: an attempt is known to have left nothing behind; the same payload may run. Atomic commands never store it.
	Failed RecordState = "failed"
)

// OutcomeKind says what a completed record holds.
type OutcomeKind int16

const (
	// Success: Result is the handler's value.
	Success OutcomeKind = 0
	// Refusal: Result is the final business refusal.
	Refusal OutcomeKind = 1
)

// Record is the stored memory of one intent, as a store reads it.
type Record struct {
	// Scope is as stored, for the comparison with the scope that was asked for.
	Scope Scope
	// Hash is the fingerprint of the payload, made under HashVersion.
	Hash        [32]byte
	HashVersion int16
	State       RecordState
	AfterExpiry AfterExpiry
	// Attempt is the attempt that wrote the record.
	Attempt AttemptID
	// Outcome, Result and ResultType are set in a completed record.
	Outcome    OutcomeKind
	Result     []byte
	ResultType string
	// OriginRequestID is the request id of the attempt that did the work.
	OriginRequestID string
	ExternalRef     string
	// Expired is true when the retention is over, judged by the store's clock when it was read.
	Expired bool
}

// Claim is what an attempt brings to the store before its handler runs.
type Claim struct {
	ID    ID
	Scope Scope
	// Hash and HashVersion are the fingerprint of the payload.
	Hash        [32]byte
	HashVersion int16
	// Attempt is this dispatch's random id.
	Attempt AttemptID
	// OriginRequestID is this attempt's request id.
	OriginRequestID string
	Retention       time.Duration
	AfterExpiry     AfterExpiry
	Isolation       Isolation
}

// Completion is what an attempt leaves in the record.
type Completion struct {
	Outcome     OutcomeKind
	Result      []byte
	ResultType  string
	ExternalRef string
}

// Store keeps the records. It is implemented by pgstore, sqlitestore and, for tests, memstore; storetest.Run is the
// specification that each of them passes. The methods are safe for concurrent use.
//
// Where a method's documentation names a sentinel error, the store returns an error that wraps it. Every other error means
// that the store is not available.
type Store interface {
	// Check is called at Build: it refuses a schema or server settings with which the promises would not hold, and gives
	// warnings for those that only weaken them.
	Check(ctx context.Context) (warnings []string, err error)
	// Look reads the record of a claim without starting anything, or gives nil. It writes nothing and takes no lock.
	Look(ctx context.Context, c Claim) (*Record, error)
	// Begin starts an attempt: it opens the transaction that the handler will write through and reads the record in it.
	// It returns ErrBusy when it can tell that another attempt holds the key; that is a hint which spares work, and a store
	// may never give it. The transaction outlives ctx, which bounds Begin alone.
	Begin(ctx context.Context, c Claim) (Attempt, error)
	// Describe names the store for people: its kind and where the records are.
	Describe() string
}

// Attempt is one open transaction of a [Store]. Exactly one of Complete, Refuse and Rollback ends it; after that, Rollback
// does nothing. An Attempt is used by one goroutine.
type Attempt interface {
	// Found is the record that Begin read, or nil.
	Found() *Record
	// Context puts the transaction into the handler's context.
	Context(ctx context.Context) context.Context
	// Used reports whether the handler has asked for the transaction.
	Used() bool
	// Ended reports, when the handler has failed and before Rollback, whether it has ended the transaction itself, or tried
	// to, as far as the store can tell. What it had done by then may then be committed without a record.
	Ended() bool
	// Complete writes the record and commits, business rows included. It takes the key from a record that is absent,
	// expired with AfterExpiry Reuse and not in progress, or failed with the same hash, and from no other; never from a
	// record of another scope.
	//
	// ErrLost: another attempt's record stands there; nothing of this one is committed. A store may give it as well for a
	// record that Begin has not read, whatever its state. ErrBusy: another attempt is just
	// committing. ErrSerialization: the whole attempt may be made again. ErrCommitUnknown: nobody knows.
	// ErrTransactionEnded and ErrTransactionAborted: the handler did what it must not.
	Complete(ctx context.Context, done Completion) error
	// Refuse rolls the business rows back and then writes the record of a final refusal, with the errors of Complete. A
	// crash between the two leaves nothing.
	Refuse(ctx context.Context, done Completion) error
	// Rollback undoes the attempt. It reports nothing: what cannot be rolled back has no connection any more.
	Rollback(ctx context.Context)
	// Transient reports whether a handler's error is a serialization failure or a deadlock of the database, after which
	// the whole attempt may be made again.
	Transient(err error) bool
}

// checkScope compares a record with the claim it was read for. Equal ids with different scopes would be a collision of
// SHA-256 or a damaged table: never a replay and never a conflict.
func checkScope(name string, r *Record, c *Claim) error {
	if r.Scope != c.Scope {
		return &RecordError{Command: name}
	}
	return nil
}
