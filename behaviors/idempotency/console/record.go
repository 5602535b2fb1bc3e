package console

import (
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/requestctx"
)

// The moods of a record: what it comes to, in a word.
const (
	moodDone    = "done"
	moodRefused = "refused"
	moodOpen    = "in progress"
	moodStuck   = "stuck"
	moodFailed  = "failed"
)

// recordView is a record as pages and scripts see it. Everything that is shown goes through it, and it has no place for a result, a refusal's message or data,
// a payload's hash or a whole key.
type recordView struct {
	ID          string `json:"id"`
	OperationID string `json:"operation_id"`
	Verdict     string `json:"verdict"`
	Tenant      string `json:"tenant"`
	Client      string `json:"client"`
	Command     string `json:"command"`
	Operation   string `json:"operation"`
	KeyMasked   string `json:"key_masked"`
	State       string `json:"state"`
	Stuck       bool   `json:"stuck"`
	Expired     bool   `json:"expired"`
	// FirstMet is when the key's present life began.
	FirstMet time.Time `json:"first_met"`
	// Attempts is how often the key was taken: see made.
	Attempts    int       `json:"attempts"`
	AttemptID   string    `json:"attempt_id"`
	LeaseUntil  time.Time `json:"lease_until,omitzero"`
	CompletedAt time.Time `json:"completed_at,omitzero"`
	ExpiresAt   time.Time `json:"expires_at"`
	AfterExpiry string    `json:"after_expiry"`
	RequestID   string    `json:"request_id"`
	ExternalRef string    `json:"external_ref,omitempty"`
	DraftID     string    `json:"draft_id,omitempty"`
	// Outcome is "success" or "refusal" in a completed record.
	Outcome     string `json:"outcome,omitempty"`
	RefusalCode string `json:"refusal_code,omitempty"`
	Kept        string `json:"kept,omitempty"`
	ResultType  string `json:"result_type,omitempty"`
	ResultBytes int    `json:"result_bytes"`
	// FoundBy are the kinds by which a search has found it.
	FoundBy []string `json:"found_by,omitempty"`

	Mood string    `json:"-"`
	Live bool      `json:"-"` // it is in progress and its lease is not over
	now  time.Time // by the clock by which the times were made, as near as it is known
}

func viewOf(rec *idempotency.Stored, by []string) recordView {
	v := recordView{
		ID: fmt.Sprintf("%x-%x-%x-%x-%x", rec.ID[:4], rec.ID[4:6], rec.ID[6:8], rec.ID[8:10], rec.ID[10:]), OperationID: rec.ID.Operation(),
		Tenant: rec.Scope.Tenant, Client: rec.Scope.Client, Command: rec.Scope.Command(), Operation: rec.Scope.Operation, KeyMasked: masked(rec.Scope.Key),
		State: string(rec.State), Expired: rec.Expired,
		FirstMet: rec.CreatedAt.UTC(), Attempts: rec.Attempts, AttemptID: hex.EncodeToString(rec.Attempt[:]), ExpiresAt: rec.ExpiresAt.UTC(), AfterExpiry: rec.AfterExpiry.String(),
		RequestID: rec.OriginRequestID, ExternalRef: rec.ExternalRef, DraftID: rec.DraftID,
		FoundBy: by, now: time.Now(),
	}
	switch {
	case rec.State == idempotency.Completed:
		v.CompletedAt, v.Kept, v.RefusalCode = rec.CompletedAt.UTC(), string(rec.Kept()), rec.RefusalCode()
		v.ResultType, v.ResultBytes = rec.ResultType, len(rec.Result)
		v.Outcome, v.Mood = "success", moodDone
		if rec.Outcome == idempotency.Refusal {
			v.Outcome, v.Mood = "refusal", moodRefused
		}
	case rec.State == idempotency.Failed:
		v.Mood = moodFailed
	case rec.LeaseLeft > 0:
		v.Mood, v.Live, v.now = moodOpen, true, rec.LeaseUntil.Add(-rec.LeaseLeft)
	default:
		v.Mood, v.Stuck = moodStuck, true
	}
	if rec.State == idempotency.InProgress && !rec.LeaseUntil.IsZero() {
		v.LeaseUntil = rec.LeaseUntil.UTC()
	}
	v.Verdict = v.verdict(rec)
	return v
}

// masked shows as much of a key as a person may see (rule key-4), and nothing of what is no key.
func masked(key string) string {
	parsed, err := requestctx.ParseKey(key)
	if err != nil {
		return "…"
	}
	return parsed.Masked()
}

// silent is what is known where a lease is over. A handler does not renew it while its business transaction is open.
const silent = "Nothing has been heard since its lease ended: most likely nobody is at work on it, but an attempt may still finish."

// verdict answers "was he charged twice?" in words for somebody who has not read the documentation. What it does not know it says.
func (v *recordView) verdict(rec *idempotency.Stored) string {
	by := "by request " + v.RequestID
	if v.RequestID == "" {
		by = "by a request without an id"
	}
	at := func(t time.Time) string { return by + " at " + t.UTC().Format(timeForm) + " UTC" }
	ref := "" // in completed records alone
	if v.ExternalRef != "" {
		ref = ", external reference " + v.ExternalRef
	}
	var said []string
	say := func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) }
	newWork := v.Expired && rec.AfterExpiry == idempotency.Reuse
	later := func(sentence string) {
		switch {
		case newWork && rec.Kept() != idempotency.KeptErased:
			say("Its retention is over, so a later try with this key is new work.")
		case v.Expired, rec.Kept() == idempotency.KeptErased:
			say("Later tries with this key are refused as expired.")
		default:
			say("%s", sentence)
		}
	}
	elsewhere := func() {
		if v.Attempts > 1 {
			say("It took %s; another system that an earlier one had called may have been asked more than once, so look there as well.", v.Tried())
		}
	}
	switch kept := rec.Kept(); v.Mood {
	case moodDone:
		say("Done once, %s%s.", at(v.CompletedAt), ref)
		elsewhere()
		switch kept {
		case idempotency.KeptErased:
			say("What came of it is no longer kept.")
		case idempotency.KeptOmitted:
			say("What came of it was not kept.")
		}
		if kept == idempotency.KeptOmitted {
			later("Later tries with this key are not done again; they are told that the result was not kept.")
		} else {
			later("Later tries with this key get the same answer and are not done again.")
		}
	case moodRefused:
		code := ""
		if v.RefusalCode != "" {
			code = " with " + v.RefusalCode
		}
		say("Refused for good%s, %s%s. Nothing of it was kept in this database.", code, at(v.CompletedAt), ref)
		elsewhere()
		later("Later tries with this key get the same refusal.")
	case moodOpen:
		say("Most likely being done now: an attempt, %s, holds the key. One that has died would hold it as well, until its lease is over.", by)
		say("It is not decided yet; later tries with this key are told to wait.")
	case moodStuck:
		say("Nobody knows whether it was done: the last attempt, %s, began and has not said how it ended. %s", by, silent)
		say("Ask the other system before it is done again.")
		if newWork {
			say("Its retention is over, so a request with this key is new work.")
		} else {
			say("The same request with this key goes on as its command says: it runs again, finds out first, or is refused.")
		}
	case moodFailed:
		say("Nothing of it is committed in this database. What earlier attempts asked of other systems may have been done there, so look there as well.")
		if newWork {
			say("Its retention is over, so a request with this key is new work.")
		} else {
			say("The same request with this key runs again, unless it has had too many attempts: then it waits for a release.")
		}
	}
	return strings.Join(said, " ")
}

// Words are the kinds by which it was found, for people.
func (v *recordView) Words() string { return strings.Join(wordsFor(v.FoundBy), ", ") }

// Releasable reports whether a person can free the key.
func (v *recordView) Releasable() bool { return v.Mood != moodDone && v.Mood != moodRefused }

// Tried is how often it was tried.
func (v *recordView) Tried() string { return "at least " + count(v.made(), "attempt") }

// made is how many attempts there were at least. A serialization failure makes a handler run again within one, and a release begins the count anew. In a
// failed record the last one may have been refused, because there were too many before it.
func (v *recordView) made() int {
	if v.Mood == moodFailed {
		return max(v.Attempts-1, 1)
	}
	return v.Attempts
}

// moment is a time for a page.
type moment struct{ Machine, Text, Ago string }

const timeForm = "2006-01-02 15:04:05"

// At gives a time for the page.
func (v *recordView) At(t time.Time) moment {
	return moment{t.Format(time.RFC3339), t.Format(timeForm) + " UTC", ago(v.now.Sub(t))}
}

// ago is a duration in words, rounded down.
func ago(d time.Duration) string {
	form := "%s ago"
	if d < 0 {
		form, d = "in %s", -d
	}
	switch {
	case d < time.Second:
		return "now"
	case d < 2*time.Minute:
		return fmt.Sprintf(form, fmt.Sprintf("%d s", d/time.Second))
	case d < 2*time.Hour:
		return fmt.Sprintf(form, fmt.Sprintf("%d min", d/time.Minute))
	case d < 48*time.Hour:
		return fmt.Sprintf(form, fmt.Sprintf("%d h", d/time.Hour))
	}
	return fmt.Sprintf(form, fmt.Sprintf("%d days", d/(24*time.Hour)))
}
