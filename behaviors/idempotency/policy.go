package idempotency

import (
	"errors"
	"fmt"
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

// Atomic is the default and at present the only mode: claim, business rows and record in one transaction and one commit.
// It is for handlers whose effects are in the store's database.
const Atomic Mode = 0

func (m Mode) String() string {
	if m == Atomic {
		return "atomic"
	}
	return fmt.Sprintf("mode(%d)", int(m))
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
	// number. At most [MaxVersion].
	Version int
	// Isolation is the level of the transaction. Zero is [ReadCommitted].
	Isolation Isolation
	// KeyOptional lets the command run without a key, unprotected and counted, instead of refusing it. No key is made up.
	KeyOptional bool
	// Strict refuses a handler that succeeds without having used the transaction it was given, because its work and its
	// record would not share a commit (rule rec-1). By default that is reported in [requestctx.Outcome.Detached] and logged.
	Strict bool
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
	return p
}

// validate checks a policy that has its defaults. It reports all problems, joined, and the warnings.
func (p Policy) validate() (warnings []string, err error) {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if p.Mode != Atomic {
		bad("the mode %v does not exist; use idempotency.Atomic", p.Mode)
	}
	if p.AfterExpiry != Reuse && p.AfterExpiry != Tombstone {
		bad("AfterExpiry %v does not exist; use Reuse or Tombstone", p.AfterExpiry)
	}
	if p.Isolation < ReadCommitted || p.Isolation > Serializable {
		bad("Isolation %v does not exist; use ReadCommitted, RepeatableRead or Serializable", p.Isolation)
	}
	if p.Retention < 0 || p.Deadline < 0 {
		bad("Retention (%v) and Deadline (%v) must not be negative", p.Retention, p.Deadline)
	}
	if p.Wait > MaxWait {
		bad("Wait is %v; at most %v", p.Wait, MaxWait)
	}
	if p.Deadline > MaxDeadline {
		bad("Deadline is %v; at most %v: longer work does not belong in one transaction", p.Deadline, MaxDeadline)
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
