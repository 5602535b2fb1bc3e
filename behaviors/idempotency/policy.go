package idempotency

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"time"
)

// Marker is what makes a command idempotent: a method with no arguments and no result, on the value and not only on the
// pointer. Write one line beside the command, so that the compiler finds a mistyped name:
//
//	var _ idempotency.Marker = Place{}
type Marker interface{ Idempotent() }

// WithPolicy is implemented by a command that wants other settings than the defaults. It marks the command as much as
// [Marker] does. Idempotency is called once, at Build, on the zero value of the command, and must not depend on it.
type WithPolicy interface{ Idempotency() Policy }

// Mode says how claim, work and record share commits.
type Mode int

const (
	// Atomic is the default: claim, business rows and record in one transaction and one commit. It is for handlers whose
	// effects are in the store's database.
	Atomic Mode = iota
	// Leased is for handlers that call the outside world: the claim is committed first, under a lease that is renewed while
	// the handler runs; the handler calls out under a [DownstreamKey] and then opens its business transaction (the store's
	// InTx), which also completes the record, and which cannot be committed by an attempt that has lost its lease.
	Leased
)

func (m Mode) String() string {
	switch m {
	case Atomic:
		return "atomic"
	case Leased:
		return "leased"
	}
	return fmt.Sprintf("mode(%d)", int(m))
}

// Takeover says what becomes of a Leased key whose attempt has died: its lease is over and nobody has said how it ended.
type Takeover int

const (
	// RunAgain is the default: the next request with the same payload runs the handler again. What an earlier attempt did in the
	// outside world happens twice unless the handler passes a [DownstreamKey] on, or the outside world has another way to tell
	// the two apart.
	RunAgain Takeover = iota
	// Reconcile asks the command's reconciler first, a function that is registered beside the handler (registry.Reconcile). It
	// looks for what an earlier attempt may have done, by the downstream key or a natural key, and may give the result; only if
	// it finds nothing does the handler run. It is asked in every attempt of a key but the first, and when the first is made again
	// because of a concurrent transaction.
	Reconcile
	// Refuse does not run the handler again: the request gets an [*OutcomeUnknownError] with Review set, until a person releases
	// the key ([Admin.Release]) or it expires. It is for work of which a second time is worse than none. For its handler to count as
	// having been outside it has to ask for a [DownstreamKey] before it goes, also where the other side can make no use of one. From
	// then on only an error that the handler returns unmarked, which says that nothing was done, makes the key free without a person.
	Refuse
)

func (t Takeover) String() string {
	switch t {
	case RunAgain:
		return "run again"
	case Reconcile:
		return "reconcile"
	case Refuse:
		return "refuse"
	}
	return fmt.Sprintf("takeover(%d)", int(t))
}

// Duplicate says what a request is told while another attempt of its Leased key is running, after [Policy].Wait.
type Duplicate int

const (
	// AnswerInProgress is the default: an [*InProgressError], over HTTP 409 with Retry-After (rule http-3).
	AnswerInProgress Duplicate = iota
	// AnswerAccepted is for long work: the same error with Accepted set, over HTTP 202 with the operation's id, which is the same
	// for every attempt (rule rec-4) and under which the outcome can be asked for.
	AnswerAccepted
)

func (d Duplicate) String() string {
	switch d {
	case AnswerInProgress:
		return "in progress"
	case AnswerAccepted:
		return "accepted"
	}
	return fmt.Sprintf("duplicate(%d)", int(d))
}

// AfterExpiry says what a key means when its record has passed its retention.
type AfterExpiry int

const (
	// Reuse is the default: the key is new work, on purpose, and is counted (rule rec-10).
	Reuse AfterExpiry = iota
	// Tombstone refuses the key for good with an [*ExpiredError], for commands where a second execution is worse than
	// none. The record stays.
	Tombstone
)

func (a AfterExpiry) String() string {
	switch a {
	case Reuse:
		return "reuse"
	case Tombstone:
		return "tombstone"
	}
	return fmt.Sprintf("afterexpiry(%d)", int(a))
}

// Isolation is the isolation level of an Atomic command's transaction, where the store has levels.
type Isolation int

const (
	// ReadCommitted is the default. The claim is as safe under it as under any other level.
	ReadCommitted Isolation = iota
	// RepeatableRead gives the handler one snapshot. Conflicts are retried, the handler included.
	RepeatableRead
	// Serializable gives the handler serial semantics. Conflicts are retried, the handler included.
	Serializable
)

func (i Isolation) String() string {
	switch i {
	case ReadCommitted:
		return "read committed"
	case RepeatableRead:
		return "repeatable read"
	case Serializable:
		return "serializable"
	}
	return fmt.Sprintf("isolation(%d)", int(i))
}

// Results says what a record keeps of a result. Records that were made under another value are replayed as they are, so a command
// may go from one to another.
type Results int

const (
	// KeepResult is the default: the result is stored as it is, as JSON, and anybody who can read the database can read it. A field
	// that must not be stored is tagged json:"-", and then nobody gets it, the first caller included.
	KeepResult Results = iota
	// OmitResult stores nothing of the result, for one-time secrets such as a new token. The first caller gets all of it, as the
	// handler returned it, and every replay a [*ResultUnavailableError] with the external reference: a client that has lost the answer
	// needs another way to a new one. So does a Leased command that sends this one and is run again. The details of a final
	// refusal (RefusalData) are not stored either.
	OmitResult
	// SealResult stores the result encrypted by the engine's [Sealer], and every replay gets it. So are the details of a
	// final refusal, but not its code and its message. Who may not open it, as [FindOperation], sees no result.
	SealResult
)

func (r Results) String() string {
	switch r {
	case KeepResult:
		return "kept"
	case OmitResult:
		return "omitted"
	case SealResult:
		return "sealed"
	}
	return fmt.Sprintf("results(%d)", int(r))
}

// Defaults and bounds of a [Policy].
const (
	// DefaultRetention is how long an outcome is kept: 72 hours (rule rec-10).
	DefaultRetention = 72 * time.Hour
	// MinRetention is the shortest retention that needs no override: 24 hours.
	MinRetention = 24 * time.Hour
	// LongRetention is the retention above which Build warns about the table's growth: 30 days.
	LongRetention = 30 * 24 * time.Hour
	// DefaultWait is how long a duplicate waits for the running attempt: 250 milliseconds.
	DefaultWait = 250 * time.Millisecond
	// MaxWait is the longest such wait: 30 seconds.
	MaxWait = 30 * time.Second
	// DefaultDeadline is how long a handler may take: 60 seconds.
	DefaultDeadline = time.Minute
	// MaxDeadline is the longest such time: 1 hour.
	MaxDeadline = time.Hour
	// MaxVersion is the highest contract version.
	MaxVersion = 999
	// DefaultLease is how long a Leased key stays with an attempt that gives no sign of life: 300 seconds (rule rec-5).
	DefaultLease = 300 * time.Second
	// MinLease and MaxLease bound it: 30 seconds and 1 hour. They are checked by registry.Build and not by [Stage], so that a test
	// can use a shorter one.
	MinLease = 30 * time.Second
	MaxLease = time.Hour
	// DefaultMaxAttempts is how often a Leased key is tried: 10 times.
	DefaultMaxAttempts = 10
	// DefaultResultLimit is how much of a result is stored: 256 KiB.
	DefaultResultLimit = 256 << 10
)

// Policy is how one command is protected. The zero Policy is Atomic with the defaults.
type Policy struct {
	// Mode says how claim, work and record share commits. Zero is [Atomic].
	Mode Mode
	// Retention is how long the outcome is kept and replayed. Zero means [DefaultRetention]. Less than [MinRetention] is
	// refused unless ShortRetention is set; more than [LongRetention] is warned of.
	Retention time.Duration
	// ShortRetention allows a Retention under [MinRetention]. A window of minutes does not outlast a client that retries
	// the next morning.
	ShortRetention bool
	// AfterExpiry says what the key means when its record is older than Retention. Zero is [Reuse].
	AfterExpiry AfterExpiry
	// Wait is how long a duplicate waits for the attempt that is running before it is told "in progress". Zero means
	// [DefaultWait], a negative value no wait. At most [MaxWait]. Waiting holds no database connection.
	Wait time.Duration
	// Deadline is how long the handler may take. Its context ends then; the request's own end does not end it. Zero means
	// [DefaultDeadline]. At most [MaxDeadline].
	Deadline time.Duration
	// Version is the version of the command's contract. It is part of the fingerprint and stored with it. Zero is a
	// version like any other. A retry of an attempt that an older version recorded is compared by the recorded version's
	// number, and its result is read by a [ResultReader] where there is one. At most [MaxVersion].
	Version int
	// Isolation is the level of the transaction. Zero is [ReadCommitted].
	Isolation Isolation
	// KeyOptional lets the command run without a key, unprotected and counted, instead of refusing it. No key is made up.
	KeyOptional bool
	// Results says what the record keeps of the result. Zero is [KeepResult].
	Results Results
	// ResultLimit is the size in bytes above which the JSON of a result is not stored. The work stands and is not done again: the
	// first caller gets the whole result, and every replay a [*ResultUnavailableError] with the external reference. A final
	// refusal counts with its message and details: one that is too large is stored without the details, and with its message cut if
	// that alone is too long. Zero means [DefaultResultLimit], a negative value no bound.
	ResultLimit int
	// Strict is for Atomic commands. It refuses a handler that succeeds without having used the transaction it was given, because its work and its
	// record would not share a commit (rule rec-1). By default that is reported in [requestctx.Outcome.Detached] and logged.
	Strict bool
	// The rest is for Leased commands, and refused in others.
	//
	// Lease is how long the key stays with an attempt that gives no sign of life. It is renewed every third of it while the handler
	// runs, so a handler may take longer. When it is over, others get the right to take the key over, and nothing is taken from
	// the attempt that holds it: one that nobody has replaced completes normally. Zero means [DefaultLease].
	Lease time.Duration
	// Takeover says what becomes of a key whose attempt has died. Zero is [RunAgain].
	Takeover Takeover
	// MaxAttempts is how often a key is tried before an [*AttemptsError], at least 2. Zero means [DefaultMaxAttempts], a negative value
	// no bound. A key that a person releases begins anew with one attempt counted.
	MaxAttempts int
	// Duplicate says what a request is told while another attempt runs. Zero is [AnswerInProgress].
	Duplicate Duplicate
	// RelaxedClaim lets the commit of the claim not wait for the disk, which saves half of the waiting. After a crash of the
	// database's server within the next second the claim may be lost, and a retry is then a first attempt and may run beside the
	// handler of the lost one. Its rows stay right; what it does outside happens twice unless that carries a [DownstreamKey].
	// Stores that cannot do it ignore it.
	RelaxedClaim bool
}

// tunable are the fields of a policy that a deployment may change. None of them changes what a record or an answer means to an
// instance that has another value.
var tunable = []string{"Retention", "ShortRetention", "Wait", "Deadline", "KeyOptional", "Lease", "MaxAttempts", "RelaxedClaim", "ResultLimit"}

// adjusted is p as adjust changes a copy of it, and the names of the fields that it has changed. What it must not change stays as
// it was, and is the error.
func (p Policy) adjusted(adjust func(*Policy)) (_ Policy, tuned []string, err error) {
	if adjust == nil {
		return p, nil, nil
	}
	after := p
	adjust(&after)
	old, now := reflect.ValueOf(&p).Elem(), reflect.ValueOf(&after).Elem()
	var errs []error
	for i := range old.NumField() {
		name := old.Type().Field(i).Name
		switch {
		case old.Field(i).Equal(now.Field(i)):
		case slices.Contains(tunable, name):
			old.Field(i).Set(now.Field(i))
			tuned = append(tuned, name)
		default:
			errs = append(errs, fmt.Errorf("%s is changed for this deployment from %v to %v, and belongs to the command's type: records and answers "+
				"would mean other things here than elsewhere; change it in the type's method Idempotency", name, old.Field(i), now.Field(i)))
		}
	}
	return p, tuned, errors.Join(errs...)
}

// withDefaults fills the zero fields in.
func (p Policy) withDefaults() Policy {
	if p.Retention == 0 {
		p.Retention = DefaultRetention
	}
	if p.Wait == 0 {
		p.Wait = DefaultWait
	}
	if p.Wait < 0 {
		p.Wait = 0
	}
	if p.Deadline == 0 {
		p.Deadline = DefaultDeadline
	}
	if p.ResultLimit == 0 {
		p.ResultLimit = DefaultResultLimit
	}
	if p.Mode == Leased {
		if p.Lease == 0 {
			p.Lease = DefaultLease
		}
		if p.MaxAttempts == 0 {
			p.MaxAttempts = DefaultMaxAttempts
		}
		if p.MaxAttempts < 0 {
			p.MaxAttempts = math.MaxInt32 - 1 // a store may count one further in 32 bits
		}
	}
	return p
}

// validate checks a policy that has its defaults. It reports all problems, joined, and the warnings.
func (p Policy) validate() (warnings []string, err error) {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	switch p.Mode {
	case Atomic:
		if p.Lease != 0 || p.Takeover != RunAgain || p.MaxAttempts != 0 || p.Duplicate != AnswerInProgress || p.RelaxedClaim {
			bad("Lease, Takeover, MaxAttempts, Duplicate and RelaxedClaim are for Mode Leased; an Atomic command has no lease")
		}
	case Leased:
		p.validateLease(bad)
	default:
		bad("the mode %v does not exist; use idempotency.Atomic or idempotency.Leased", p.Mode)
	}
	if p.AfterExpiry != Reuse && p.AfterExpiry != Tombstone {
		bad("AfterExpiry %v does not exist; use Reuse or Tombstone", p.AfterExpiry)
	}
	if p.Isolation < ReadCommitted || p.Isolation > Serializable {
		bad("Isolation %v does not exist; use ReadCommitted, RepeatableRead or Serializable", p.Isolation)
	}
	if p.Results < KeepResult || p.Results > SealResult {
		bad("Results %v does not exist; use KeepResult, OmitResult or SealResult", p.Results)
	}
	if p.Retention < 0 || p.Deadline < 0 {
		bad("Retention (%v) and Deadline (%v) must not be negative", p.Retention, p.Deadline)
	}
	if p.Wait > MaxWait {
		bad("Wait is %v; at most %v", p.Wait, MaxWait)
	}
	if p.Deadline > MaxDeadline {
		bad("Deadline is %v; at most %v", p.Deadline, MaxDeadline)
	}
	if p.Version < 0 || p.Version > MaxVersion {
		bad("Version is %d; it must be between 0 and %d", p.Version, MaxVersion)
	}
	if p.Retention >= 0 && p.Retention < MinRetention && !p.ShortRetention {
		bad("Retention is %v; less than %v forgets the key before a client has stopped retrying; set ShortRetention if that is meant", p.Retention, MinRetention)
	}
	if p.Deadline >= 0 && p.Retention < p.Deadline {
		bad("Retention (%v) is shorter than Deadline (%v): the record could expire while its handler runs", p.Retention, p.Deadline)
	}
	if p.Retention > LongRetention {
		warnings = append(warnings, fmt.Sprintf("Retention is %v; above %v the table of records grows large", p.Retention, LongRetention))
	}
	return warnings, errors.Join(errs...)
}

func (p Policy) validateLease(bad func(format string, args ...any)) {
	if p.Lease < 0 {
		bad("Lease is %v; it must not be negative", p.Lease)
	}
	if p.Retention >= 0 && p.Retention < p.Lease {
		bad("Retention (%v) is shorter than Lease (%v): the record could expire while its handler runs", p.Retention, p.Lease)
	}
	if p.Takeover < RunAgain || p.Takeover > Refuse {
		bad("Takeover %v does not exist; use RunAgain, Reconcile or Refuse", p.Takeover)
	}
	if p.Duplicate < AnswerInProgress || p.Duplicate > AnswerAccepted {
		bad("Duplicate %v does not exist; use AnswerInProgress or AnswerAccepted", p.Duplicate)
	}
	if p.MaxAttempts == 1 {
		bad("MaxAttempts is 1: a key that has failed could never run again, not even after a person has released it; use 2 or more, or Takeover Refuse to leave what has died to a person")
	}
	if p.MaxAttempts >= math.MaxInt32 {
		bad("MaxAttempts is %d; use a negative value for no bound", p.MaxAttempts)
	}
	if p.Strict {
		bad("Strict is for Mode Atomic; a Leased command may have all of its effects outside")
	}
}

// CheckLease reports a lease out of its bounds. Build calls it; [Stage] does not, so that a test can use a shorter lease.
func (p Policy) CheckLease() error {
	if p.Mode == Leased && (p.Lease < MinLease || p.Lease > MaxLease) {
		return fmt.Errorf("Lease is %v; it must be between %v and %v", p.Lease, MinLease, MaxLease)
	}
	return nil
}
