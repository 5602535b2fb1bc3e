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

// Command is the command's name in Operation.
func (s Scope) Command() string { return commandOf(s.Operation) }

// commandOf is what stands behind the last space.
func commandOf(operation string) string { return operation[strings.LastIndexByte(operation, ' ')+1:] }

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

// Operation is the id of what is being done under the record, for a caller that has to ask later (rule rec-4). It is the same for
// every attempt of the intent, and nobody can read the key out of it; the time that a key may begin with is masked, though not
// secret to somebody who knows how. It is a name and no secret: whoever may ask under it is decided by scope, see
// [FindOperation].
func (id ID) Operation() string {
	id.mask()
	return hex.EncodeToString(id[:4]) + "-" + hex.EncodeToString(id[4:6]) + "-" + hex.EncodeToString(id[6:8]) + "-" + hex.EncodeToString(id[8:10]) + "-" + hex.EncodeToString(id[10:])
}

// mask hides the first six bytes, or shows them again.
func (id *ID) mask() {
	sum := sha256.Sum256(append([]byte("operation/1"), id[6:]...))
	for i := range 6 {
		id[i] ^= sum[i]
	}
}

// ParseOperation reads the record's id out of what [ID.Operation] has written. Most texts in the form of a UUID can be read so: that one
// was gives no word on whether there is such a record, nor on who may see it.
func ParseOperation(s string) (id ID, ok bool) {
	if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' || s != strings.ToLower(s) {
		return id, false
	}
	if _, err := hex.Decode(id[:], []byte(s[:8]+s[9:13]+s[14:18]+s[19:23]+s[24:])); err != nil {
		return id, false
	}
	id.mask()
	return id, true
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
	// InProgress: a Leased attempt holds the key. Atomic commands never store it.
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
	// Attempts counts the attempts of the key's present life; 1 for Atomic commands.
	Attempts int
	// Fence is that of the last grant; 0 for Atomic commands.
	Fence int64
	// LeaseLeft is what was left of the lease of a record in progress when it was read for a Leased claim, by the store's clock; 0
	// when it was over.
	LeaseLeft time.Duration
	// Outcome, Result and ResultType are set in a completed record.
	Outcome    OutcomeKind
	Result     []byte
	ResultType string
	// OriginRequestID is the request id of the attempt that did the work.
	OriginRequestID string
	// OriginTrace is that attempt's traceparent, if it was traced.
	OriginTrace string
	ExternalRef string
	// DraftID is the draft that the request of that attempt was about, or of an earlier one of the key's present life where it said none.
	DraftID string
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
	// OriginTrace is this attempt's traceparent, or empty.
	OriginTrace string
	// DraftID is the draft that the request is about, or empty.
	DraftID     string
	Retention   time.Duration
	AfterExpiry AfterExpiry
	Isolation   Isolation
	// PriorHash is the fingerprint of the same payload under the contract version of a record that was met. Zero means that there
	// is none; otherwise a guard that compares hashes lets it pass as well.
	PriorHash [32]byte
	// The rest is for Leased claims. Lease is how long the key is this attempt's without a renewal; 0 in an Atomic claim.
	Lease time.Duration
	// MaxAttempts is the number of attempts that may have been made before: a record that has more is not taken any more until
	// it has expired.
	MaxAttempts int
	// NoTakeover leaves records in progress alone even when their lease is over.
	NoTakeover bool
	// Relaxed lets the commit of the claim not wait for the disk, where the store can.
	Relaxed bool
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
	Begin(ctx context.Context, c Claim) (Transaction, error)
	// Lease takes the key of a Leased attempt and commits that, so that everybody can see it. It gives either a Lease or the
	// record that stands in the way.
	//
	// The key is taken from a record that is absent; failed with the same hash; in progress with the same hash and with a
	// lease that is over, unless the claim says NoTakeover; or expired with AfterExpiry Reuse, no tombstone and not in progress
	// under a live lease, with any hash. MaxAttempts bounds the second and the third. A record in progress whose Attempt is the claim's own
	// is a claim whose answer was lost: it is given as a Lease. All of it is judged by the store's clock at the moment at which
	// the row is held.
	//
	// ErrBusy: an uncommitted transaction stood in the way for too long, or the record vanished over and over.
	// ErrSerialization: it may be tried again. ErrCommitUnknown: nobody knows whether the claim was committed; calling Lease
	// again with the same claim finds out.
	Lease(ctx context.Context, c Claim) (Lease, *Record, error)
	// Find gives the records that a search asks for, the youngest first, at most limit of them.
	Find(ctx context.Context, q Search, limit int) ([]Stored, error)
	// Count counts all records. It reads the whole table, so the caller bounds it by ctx.
	Count(ctx context.Context) ([]Count, error)
	// Free makes a record that is in progress or failed, and whose Attempt is still seen, free for its payload: failed, under a new
	// random Attempt so that whoever held it can complete it no more, with its lease over and its count of attempts back at 1.
	// It reports false when there is no such record.
	Free(ctx context.Context, id ID, seen AttemptID) (bool, error)
	// Erase takes result, external reference and draft out of a completed or failed record whose Attempt is still seen. A completed one
	// keeps its key and hash as a tombstone until it expires. It reports false when there is no such record.
	Erase(ctx context.Context, id ID, seen AttemptID) (bool, error)
	// Purge makes tombstones of expired records whose AfterExpiry says so, and then removes expired records, each at most limit
	// of a batch, in the order of their expiry, leaving out those that somebody else has locked.
	Purge(ctx context.Context, b PurgeBatch) (Purged, error)
	// Describe names the store for people: its kind and where the records are.
	Describe() string
}

// Lease is what a Leased attempt holds: a committed claim on a key and, from the moment at which the handler asks for it (the
// store's InTx), a business transaction. The first statement of that transaction locks the record and makes sure that it is
// still this attempt's; its last one completes it under the same condition, so that nothing of a late owner can be committed.
//
// It ends with the first of Complete, Refuse, Release and Rollback that does what it says. Renew may be called from another goroutine at any time, the
// other methods are used by one.
type Lease interface {
	// Grant says what was given.
	Grant() Grant
	// Context puts the lease into the handler's context.
	Context(ctx context.Context) context.Context
	// Renew makes the lease last its full length from now, and never makes it shorter. While the business transaction is open it
	// does nothing, because that transaction holds the record. ErrLeaseLost: the record is no longer this attempt's. Every
	// other error says nothing about the lease.
	Renew(ctx context.Context) error
	// Open reports whether the business transaction is open. Like Renew it may be called from any goroutine.
	Open() bool
	// Ended is as in [Transaction]: whether the handler has ended the business transaction itself.
	Ended() bool
	// Complete writes the outcome and commits, the business rows included, if the record is still in progress and this attempt's:
	// the lease may be over. Where the handler has opened no transaction, it writes the outcome alone.
	//
	// ErrLost: the record is not this attempt's any more; nothing was committed. The other errors are those of
	// Transaction.Complete. When an outcome that was written alone ends in one of those that say nothing about the record, it may
	// be written again, by Complete as by Refuse.
	Complete(ctx context.Context, done Completion) error
	// Refuse rolls the business rows back and writes the outcome alone, with the errors of Complete.
	Refuse(ctx context.Context, done Completion) error
	// Release rolls the business rows back and makes the record failed, so that the same payload may run at once, and under a
	// new random Attempt, so that a COMMIT of this attempt that is still under way can no longer succeed. It may be called after
	// Complete or Refuse has failed, and again after it has failed itself. ErrLost: the record is not in progress or not this
	// attempt's.
	Release(ctx context.Context) error
	// Rollback rolls the business rows back and leaves the record in progress until its lease is over.
	Rollback(ctx context.Context)
	// Transient is as in [Transaction].
	Transient(err error) bool
}

// Grant is what a Lease was given.
type Grant struct {
	// Fence is larger than that of every earlier grant of the store, for outside systems that refuse what is older than what
	// they have seen. It goes back when the database fails over to a replica that had not yet got it, so nothing of ours depends
	// on it.
	Fence int64
	// Attempt counts the attempts of the key's present life from 1.
	Attempt int
	// TookOver is true when the record was in progress and its lease was over.
	TookOver bool
	// Reused is true when the key had a record that had expired.
	Reused bool
}

// Search says which records are wanted: by ID, by Key with or without the rest of the scope, by ExternalRef, DraftID or RequestID, or
// because they are Stuck. Fields that are zero are not compared; at least one of these six must be set.
type Search struct {
	ID          ID
	Key         string
	ExternalRef string
	DraftID     string
	// RequestID is the id of the attempt that did the work or does it. Those of replays are not in the records; the log has them.
	RequestID string
	// Stuck wants the records that are in progress with their lease over, by the store's clock, and those that have failed: most likely nobody is at
	// work on them, they are not done as far as is known, and a person may have to look. [Count.Stuck] is true for the former alone.
	Stuck bool
	// Tenant, Client and Operation narrow the search. They are compared where they are not nil.
	Tenant, Client, Operation *string
}

// IsZero reports whether a search asks for nothing.
func (q Search) IsZero() bool {
	return q.ID == ID{} && q.Key == "" && q.ExternalRef == "" && q.DraftID == "" && q.RequestID == "" && !q.Stuck
}

// Count is how many records of an operation are in one state.
type Count struct {
	// Operation is as in [Scope].
	Operation string
	State     RecordState
	// Stuck is true for those in progress whose lease is over. Those that have failed are told by State.
	Stuck bool
	// Expired is true for those whose retention is over and that no purge has removed yet.
	Expired bool
	Records int64
}

// Command is the command's name in Operation.
func (c Count) Command() string { return commandOf(c.Operation) }

// Stored is a record with what only people ask for.
type Stored struct {
	ID ID
	Record
	CreatedAt time.Time
	// CompletedAt is zero in a record that is not completed.
	CompletedAt time.Time
	ExpiresAt   time.Time
	// LeaseUntil is zero in a record that has never had a lease.
	LeaseUntil time.Time
}

// PurgeBatch is one step of a purge.
type PurgeBatch struct {
	// Limit bounds the records of one step: at least 1.
	Limit int
	// Grace is how long records are kept after they have expired, against clocks that step back.
	Grace time.Duration
	// Remember is how long a tombstone is kept after the record's own expiry.
	Remember time.Duration
}

// Purged is what a purge has done.
type Purged struct {
	// Removed counts the records that are gone.
	Removed int
	// Buried counts the records that became tombstones.
	Buried int
}

// Transaction is what an Atomic attempt holds: one open transaction of a [Store]. Exactly one of Complete, Refuse and Rollback
// ends it; after that, Rollback does nothing. It is used by one goroutine.
type Transaction interface {
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
