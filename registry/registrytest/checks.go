package registrytest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/validation"
	"github.com/tekil-go/tekil/requestctx"
)

// checks are those for the mode that the command's type has.
func (c Case[C, R]) checks(t *testing.T) []check[C, R] {
	all := []check[C, R]{
		{"Rows counts what each intent does, and a command without a key does nothing (pipe-7)", c.countsIntents},
		{"another payload under the key is a conflict (http-4)", c.otherPayload},
		{"a second request while the first one runs does no work (rec-4)", c.duringTheFirst},
		{"a caller that hangs up and tries again has one effect (see-3)", c.timeout},
		{"an edited payload after a lost answer is a conflict, and the first outcome stands (see-3)", c.editedAfterLoss},
		{"sixteen requests at once to two processes are one effect (rec-2)", c.race},
		{"a message that is delivered twice is handled once (msg-1)", c.deliveredTwice},
		{"a retry in another second is the same request (see-3)", c.inAnotherSecond},
		{"a process that dies after the claim leaves nothing (rec-1)", c.dies(afterClaim)},
		{"a process that dies before the commit leaves nothing (rec-1)", c.dies(beforeCommit)},
		{"a process that dies after the commit has done it (rec-1)", c.dies(afterCommit)},
		{"a commit that fails leaves nothing, and the same process does it again (rec-1)", c.commitFails},
		{"a key after its retention (rec-10)", c.expires},
	}
	if c.NothingInvalid {
		t.Logf("registrytest: %s: NothingInvalid is set, so nothing is proved of invalid commands (pipe-3)", reflect.TypeFor[C]())
	} else {
		all = append(all, check[C, R]{"an invalid command spends no key and runs when it is corrected (pipe-3)", c.corrected})
	}
	if c.NaturalKey {
		t.Logf("registrytest: %s: NaturalKey is set, so of intents that the handler refuses it is not proved that Rows would count them", reflect.TypeFor[C]())
	}
	var zero C
	own, ok := any(zero).(idempotency.WithPolicy)
	if !ok || own.Idempotency().Mode != idempotency.Leased {
		return append(all, check[C, R]{"an Atomic handler writes through the transaction it is given and calls nothing outside (rec-1)", c.staysInside})
	}
	if c.NothingOutside {
		t.Logf("registrytest: %s: NothingOutside is set, so nothing is proved of a call that dies or whose answer is lost (rec-11)", reflect.TypeFor[C]())
	} else {
		all = append(all,
			check[C, R]{"a process that dies in its call has asked for a downstream key (rec-11)", c.diesInCall},
			check[C, R]{"the answer of the outside gets lost (rec-11)", c.answerLost})
	}
	return append(all,
		check[C, R]{"a Leased handler calls out before its transaction (rec-11)", c.callsOut},
		check[C, R]{"a process that dies during a takeover leaves nothing (rec-5)", c.diesTakingOver},
		check[C, R]{"an attempt that comes back after its key was taken over commits nothing (rec-5)", c.comesBack},
	)
}

// Sentences that several checks end with.
const (
	whyTwice    = "a retry after a lost answer is the most common thing there is, and each one would do the work again"
	doTwice     = "let the handler write through the store's DB (in a Leased handler within InTx), and let nothing else remember what was done"
	whyAlone    = "work that is committed by itself stays when the process dies before the record is written, and the retry, which finds no record, does it again"
	doAlone     = "write through pgstore.DB(ctx, pool) or sqlitestore.DB(ctx, db), in a Leased handler within InTx, with the handler's own ctx; begin, commit and COMMIT nothing yourself"
	doEdited    = "take the field out of `idempotency:\"-\"`, or let Edited change a field that is part of the intent"
	whyDecided  = "the first answer was not seen by whoever sent it, but it is what was done: an edited payload must be told so and neither run nor get the other one's answer"
	doFirst     = "run the command by hand and mend it; Prove needs one that works"
	whyOutside  = "nothing outside of the database is rolled back: whoever dies between the call and the commit makes the call again, and a payment or a mail happens twice"
	doLeased    = "make it Leased and call out under idempotency.DownstreamKey(ctx, …) before InTx, or write a row in the transaction and let a worker send it"
	whyTakeover = "whoever takes over does the work again, under the same keys; that is no harm only if nothing of the earlier attempt is committed and the other side knows the key"
)

// wantRows demands a number of effects.
func (s *trial[C, R]) wantRows(want int, when, why, do string) bool {
	s.Helper()
	got := s.rows()
	if got != want {
		s.fault(fmt.Sprintf("%s Rows counts %s, and should count %d", when, effects(got), want), why, do)
	}
	return got == want
}

// wantOne demands that after all that happened there is one effect.
func (s *trial[C, R]) wantOne(when, why, do string) {
	s.Helper()
	if s.rows() == 0 {
		why, do = "the client is told that its work was done, and there is none", "let the handler do its work each time it is called, and let nothing else remember what was done"
	}
	s.wantRows(1, when, why, do)
}

func effects(n int) string {
	if n == 1 {
		return "1 effect"
	}
	return fmt.Sprintf("%d effects", n)
}

// wantOneOutside demands that what counts outside has been done once: as often as the first success has done it.
func (s *trial[C, R]) wantOneOutside(when string) {
	s.Helper()
	got := s.outside()
	if s.sys.Outside == nil || !s.policy.leased || got == s.unit && (got > 0 || s.c.NothingOutside) {
		return
	}
	want := max(s.unit, 1)
	why, do := "every attempt of one intent has to be the same request for the other side; otherwise a retry pays twice",
		"give the other side idempotency.DownstreamKey(ctx, label), with one label for each thing that is meant to happen once, and no key of your own making"
	if got == 0 {
		why, do = "a count that does not see the first effect would not see a second one either", "let Outside count what the fake has done, or leave it nil where nothing is called"
	}
	s.fault(fmt.Sprintf("%s Outside counts %s, and should count %d", when, effects(got), want), why, do)
}

// done demands that the command was carried out by this very request.
func (s *trial[C, R]) done(r reply[R], what string) bool {
	s.Helper()
	if !r.died && r.err == nil && r.out.State == requestctx.StateExecuted {
		return true
	}
	do := doFirst
	if r.err != nil && (strings.Contains(r.err.Error(), "SQLITE_BUSY") || strings.Contains(r.err.Error(), "database is locked")) {
		do = "let the handler write through sqlitestore.DB(ctx, db): a write through the *sql.DB waits for the handler's own transaction"
	}
	s.fault(fmt.Sprintf("%s was not carried out, but got %v", what, r), "nothing can be proved of a command that does not work", do)
	return false
}

// replays demands that r is the answer of an earlier attempt.
func (s *trial[C, R]) replays(r, first reply[R], what string) bool {
	s.Helper()
	switch {
	case is[*idempotency.ConflictError](r.err):
		s.fault(fmt.Sprintf("%s was refused as a conflict, although it is the same request: %s", what, drift(s.earlier, s.c.Valid)),
			"a client that tries again after a lost answer would be told that it had sent something else, and never learn what became of its order",
			"leave ids, times and random values out of the command: make them in the handler, or tag the field `idempotency:\"-\"` if it is no part of the intent")
	case is[*idempotency.ResultUnavailableError](r.err) && s.policy.omits:
		return true // the policy's own answer
	case is[*idempotency.ResultUnavailableError](r.err):
		s.fault(what+" was told that the result was not stored", "the client cannot be told what it has done", "make the result smaller, raise the policy's ResultLimit, or say OmitResult")
	case r.died || r.err != nil || r.out.State != requestctx.StateReplayed:
		s.fault(fmt.Sprintf("%s got %v instead of the first outcome", what, r), whyTwice, doTwice)
	case first.err == nil && !first.died && !reflect.DeepEqual(r.res, first.res):
		s.fault(what+" got another result than the first request", "a client acts on the result, and two results are two orders to it",
			"let the result be read back from JSON as it was written (no unexported state, no method that gives something else each time)")
	default:
		return true
	}
	return false
}

// drift says, without its values, what makes two commands of one request differ.
func drift[C any](earlier *C, valid func() C) string {
	a, b := valid(), valid()
	if earlier != nil {
		a = *earlier
	}
	if fields := differ(a, b); fields != "" {
		return "Valid gives " + fields + " another value each time it is called, as a constructor with a random id or the time does"
	}
	if fields := differ(normalized(a), normalized(b)); fields != "" {
		return "its method Normalize gives " + fields + " another value each time"
	}
	return "something in its fingerprint is not the same each time (a method MarshalJSON, or a handler or Validate that changes what the command points to)"
}

func normalized[C any](cmd C) C {
	if n, ok := any(&cmd).(interface{ Normalize() C }); ok {
		return n.Normalize()
	}
	return cmd
}

func differ[C any](a, b C) string {
	va, vb := reflect.ValueOf(a), reflect.ValueOf(b)
	if va.Kind() != reflect.Struct {
		return ""
	}
	var names []string
	for i := range va.NumField() {
		if f := va.Type().Field(i); f.IsExported() && !reflect.DeepEqual(va.Field(i).Interface(), vb.Field(i).Interface()) {
			names = append(names, f.Name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return "the field " + strings.Join(names, ", ")
}

// settled sends the command until it is carried out or replayed, as a patient client, the clock and, where the policy asks for one, a
// person do: a lease is let run out, and a key that is left to a person is released. It returns the last answer.
func (s *trial[C, R]) settled(key requestctx.Key) (r reply[R]) {
	s.Helper()
	return s.settledAt(s.process, key)
}

// settledAt is settled for a client that is sent to the process which at gives.
func (s *trial[C, R]) settledAt(at func() *process[C, R], key requestctx.Key) (r reply[R]) {
	s.Helper()
	for range 5 {
		r = at().send(key, s.c.Valid())
		unknown, isUnknown := errors.AsType[*idempotency.OutcomeUnknownError](r.err)
		switch {
		case is[*idempotency.InProgressError](r.err), isUnknown && !unknown.Review:
			s.sys.Age(s.policy.lease + time.Minute)
		case isUnknown, is[*idempotency.AttemptsError](r.err):
			s.release(key)
		default:
			return r
		}
	}
	return r
}

// release is the person who frees the key.
func (s *trial[C, R]) release(key requestctx.Key) {
	s.Helper()
	admin, err := idempotency.NewAdmin(idempotency.AdminConfig{Store: s.sys.Config.Store, Logger: zap.NewNop()})
	if err == nil {
		for _, rec := range s.records(key) {
			err = admin.Release(s.within(), rec.ID, idempotency.Intervention{By: "registrytest", Reason: "the kit plays the person"})
		}
	}
	if err != nil {
		s.Fatalf("registrytest: %s: the key could not be released: %v", s.name, err)
	}
}

func (s *trial[C, R]) records(key requestctx.Key) []idempotency.Stored {
	s.Helper()
	found, err := s.sys.Config.Store.Find(s.within(), idempotency.Search{Key: key.String()}, 10)
	if err != nil {
		s.Fatalf("registrytest: %s: the records could not be read: %v", s.name, err)
	}
	return found
}

// sameTwice is the check without which the others make no sense. It gives what one intent does outside.
func (c Case[C, R]) sameTwice(s *trial[C, R]) (unit int) {
	p, key := s.process(), s.key()
	first := p.send(key, c.Valid())
	if !s.done(first, "Valid") {
		return 0
	}
	s.unit = s.outside()
	if !s.wantRows(1, "after one command that was carried out", "the checks tell one effect from two by it",
		"count what there is to be one of for each intent, on a connection of its own, such as SELECT count(*) FROM orders") {
		return s.unit
	}
	s.replays(p.send(key, c.Valid()), first, "the same request, sent again")
	s.replays(s.process().send(key, c.Valid()), first, "the same request, sent to another process,")
	s.wantRows(1, "after the same request was sent three times", whyTwice, doTwice)
	s.wantOneOutside("after the same request was sent three times")
	return s.unit
}

// countsIntents is the control: Rows sees as many effects as there are intents.
func (c Case[C, R]) countsIntents(s *trial[C, R]) {
	p, done := s.process(), 0
	for i, cmd := range []C{c.Valid(), c.Edited(), c.Valid()} {
		switch r := p.send(s.key(), cmd); {
		case r.err == nil && r.out.State == requestctx.StateExecuted:
			done++
		case is[*idempotency.RefusedError](r.err) && i > 0: // a natural key of the business: the second order of one cart
			if !c.NaturalKey {
				s.fault(fmt.Sprintf("%s was refused by the handler, so nobody sees whether Rows would count it", []string{"", "Edited, under a key of its own after Valid,", "Valid, under another key,"}[i]),
					"a Rows that is blind to a second effect makes every check pass",
					"let Open make what bears all three intents (an order of 150 cannot bear refunds of 100, 200 and 100), or say NaturalKey: true in the Case if the business allows one alone")
				return
			}
		default:
			s.done(r, []string{"Valid", "Edited, under a key of its own,", "Valid, under another key,"}[i])
			return
		}
	}
	if done == 3 && c.NaturalKey {
		s.fault("NaturalKey is set, and Valid and Edited were carried out under a key each, and Valid again", "what is said to be refused is not looked at", "remove NaturalKey from the Case")
	}
	s.wantRows(done, fmt.Sprintf("after %d intents with a key each", done), "a count that does not see every effect would not see a second one either",
		"let Rows count all that is committed, for every key and payload")
	r := p.send(requestctx.Key{}, c.Valid())
	if s.policy.keyOptional {
		return // it has said that it runs without one, unprotected
	}
	if !is[*idempotency.KeyMissingError](r.err) {
		s.fault(fmt.Sprintf("without a key it got %v", r), "a key that somebody makes up on the way is a new one for every retry", "let nothing but the caller set the key")
	}
	s.wantRows(done, "after a command without a key", "what ran without a key has no record, and its retry runs again", "write in the handler and nowhere before it")
}

func (c Case[C, R]) otherPayload(s *trial[C, R]) {
	p, key := s.process(), s.key()
	first := p.send(key, c.Valid())
	if !s.done(first, "Valid") {
		return
	}
	c.conflicts(s, p, key)
	s.replays(s.process().send(key, c.Valid()), first, "the first payload, sent again after the conflict,")
	s.wantRows(1, "after another payload came under the key", whyDecided, doEdited)
}

// conflicts sends Edited under a key that is taken.
func (c Case[C, R]) conflicts(s *trial[C, R], p *process[C, R], key requestctx.Key) {
	s.Helper()
	for _, at := range []*process[C, R]{p, s.process()} {
		if r := at.send(key, c.Edited()); !is[*idempotency.ConflictError](r.err) {
			s.fault(fmt.Sprintf("Edited, under the key of Valid, got %v and no *idempotency.ConflictError", r), whyDecided, doEdited)
			return
		}
	}
}

func (c Case[C, R]) duringTheFirst(s *trial[C, R]) {
	p, other, key := s.process(), s.process(), s.key() // SQLite lets nobody start while a handler holds its one write lock
	h := p.hold()
	answered := p.sent(s.within(), key, c.Valid())
	s.entered(h, answered)
	var seconds []<-chan reply[R] // at once, because each may wait for as long as its policy says
	for _, at := range []*process[C, R]{p, other} {
		for _, cmd := range []C{c.Valid(), c.Edited()} {
			seconds = append(seconds, at.impatient(key, cmd))
		}
	}
	for _, second := range seconds {
		r := wait(s.T, second, "the answer to a second request")
		if r.out.State != requestctx.StateInProgress && !is[*idempotency.ConflictError](r.err) && !r.late() {
			s.fault(fmt.Sprintf("while the first one ran, a second one got %v", r), "two that run at once are two orders, and an answer before there is an outcome is an invention", doTwice)
		}
	}
	s.wantRows(0, "while the handler of the first one was held before its first line", "somebody else has done the work", doAlone)
	h.let()
	first := wait(s.T, answered, "the first answer")
	s.done(first, "the first of two that came at once")
	s.replays(p.send(key, c.Valid()), first, "the second one, sent again after the first had ended,")
	s.wantRows(1, "after both", whyTwice, doTwice)
}

func (c Case[C, R]) timeout(s *trial[C, R]) {
	p, other, key := s.process(), s.process(), s.key()
	ctx, hangUp := context.WithCancel(s.within())
	h := p.hold()
	answered := p.sent(ctx, key, c.Valid())
	s.entered(h, answered)
	hangUp()
	if r := wait(s.T, other.impatient(key, c.Valid()), "the answer to a retry"); r.out.State != requestctx.StateInProgress && !r.late() {
		s.fault(fmt.Sprintf("the retry of a caller that had hung up got %v while its first request ran", r), whyTwice, doTwice)
	}
	h.let()
	if first := wait(s.T, answered, "the end of the first request"); first.err != nil {
		s.fault(fmt.Sprintf("the work of a caller that hung up ended with %v", first),
			"the caller has gone and will ask for this very work again; to undo it is work for nothing, and half of it may be outside",
			"use the ctx that the handler is given and not that of the request, which you may have kept in a field")
		return
	}
	s.replays(other.send(key, c.Valid()), reply[R]{died: true}, "the retry of a caller that had hung up")
	s.wantRows(1, "after a caller hung up and tried again twice", whyTwice, doTwice)
	s.wantOneOutside("after a caller hung up and tried again twice")
}

func (c Case[C, R]) corrected(s *trial[C, R]) {
	const do = "put the rule into a validate tag or the command's method Validate, which run before the key is spent"
	p, key := s.process(), s.key()
	r := p.send(key, c.Invalid())
	switch {
	case p.runs.Load() > 0:
		s.fault(fmt.Sprintf("the handler was called with Invalid, which got %v", r), "what only the handler refuses has spent its key first, and where it does so for good, the corrected form is a conflict", do)
	case !is[*validation.Error](r.err):
		s.fault(fmt.Sprintf("Invalid got %v and no *validation.Error", r), "a form that is refused for another reason than its fields says nothing of pipe-3", do+"; or give an Invalid that a rule refuses")
	}
	if n := len(s.records(key)); n > 0 {
		s.fault(fmt.Sprintf("after Invalid was refused there is %d record under its key", n), "the customer corrects the form, sends it under its key and is told that it has changed", do)
	}
	s.wantRows(0, "after Invalid was refused", "an invalid command must leave nothing", do)
	if s.done(p.send(key, c.Valid()), "the corrected command, under the key of the invalid one,") {
		s.wantRows(1, "after the corrected command", "the corrected form is one intent", do)
	}
}

func (c Case[C, R]) editedAfterLoss(s *trial[C, R]) {
	p, key := s.process(), s.key()
	p.layer.die(afterCommit)
	first := p.send(key, c.Valid())
	if !first.died {
		s.done(first, "Valid")
		return
	}
	c.conflicts(s, s.process(), key)
	r := s.process().send(key, c.Valid())
	if s.replays(r, first, "the first payload, sent again after an answer was lost,") && r.out.OriginalRequestID != first.id {
		s.fault("the first payload, sent again after an answer was lost, got the outcome of another attempt", whyDecided, doTwice)
	}
	s.wantRows(1, "after an edited payload came under the key of an answer that was lost", whyDecided, doEdited)
}

func (c Case[C, R]) race(s *trial[C, R]) {
	processes, key := []*process[C, R]{s.process(), s.process()}, s.key()
	var start sync.WaitGroup
	start.Add(1)
	answers := make(chan reply[R], 16)
	for i := range cap(answers) {
		go func() {
			start.Wait()
			answers <- <-processes[i%2].sent(s.within(), key, c.Valid())
		}()
	}
	start.Done()
	var first *reply[R]
	for range cap(answers) {
		r := wait(s.T, answers, "sixteen answers")
		switch {
		case r.err == nil && !r.died:
			if first == nil {
				first = &r
			} else if !reflect.DeepEqual(first.res, r.res) {
				s.fault("of sixteen requests at once two got different results", "two results are two orders to their callers", doTwice)
			}
		case is[*idempotency.InProgressError](r.err), is[*idempotency.RetriesError](r.err), s.policy.omits && is[*idempotency.ResultUnavailableError](r.err):
		default:
			s.fault(fmt.Sprintf("of sixteen requests at once one got %v", r), "a duplicate has to get the outcome, or be told to come again", doTwice)
		}
	}
	last := s.settled(key)
	if first == nil {
		first = &last
	}
	s.replays(s.process().send(key, c.Valid()), *first, "a retry after sixteen requests at once")
	s.wantRows(1, "after sixteen requests at once", "two servers behind a balancer get the duplicates of one client", doTwice)
	s.wantOneOutside("after sixteen requests at once")
}

func (c Case[C, R]) deliveredTwice(s *trial[C, R]) {
	p, key := s.process(), s.key()
	var replies []reply[R]
	deliver := Twice(func(_ context.Context, cmd C) error {
		r := p.send(key, cmd)
		replies = append(replies, r)
		return r.err
	})
	_ = deliver(s.within(), c.Valid())
	if s.done(replies[0], "the first delivery") {
		s.replays(replies[1], replies[0], "the second delivery of one message")
	}
	s.wantRows(1, "after a message was delivered twice", "a broker delivers at least once, which is sometimes twice", doTwice)
	s.wantOneOutside("after a message was delivered twice")
}

// inAnotherSecond is for what is made of the time and changes too rarely to be seen otherwise.
func (c Case[C, R]) inAnotherSecond(s *trial[C, R]) {
	p, key, began := s.process(), s.key(), time.Now()
	cmd := c.Valid()
	s.earlier = &cmd
	first := p.send(key, cmd)
	if !s.done(first, "Valid") {
		return
	}
	timer := time.NewTimer(time.Until(began.Truncate(time.Second).Add(time.Second)))
	defer timer.Stop()
	<-timer.C
	s.replays(p.send(key, c.Valid()), first, "the same request, sent again in another second,")
	s.wantRows(1, "after a retry in another second", whyTwice, doTwice)
}

// commitFails lets the database refuse the commit of the first attempt, in a process that lives on and remembers what it remembers.
func (c Case[C, R]) commitFails(s *trial[C, R]) {
	const when = "after a commit that failed"
	p, key := s.process(), s.key()
	p.layer.die(commitFails)
	if r := p.send(key, c.Valid()); r.err == nil {
		s.fault(fmt.Sprintf("the attempt whose commit was to fail got %v", r), "nothing can be proved of a command that does not come to its commit", doFirst)
		return
	}
	if !s.wantRows(0, when, whyAlone, doAlone) {
		return // the retries can only add to that
	}
	r := s.settledAt(func() *process[C, R] { return p }, key)
	s.done(r, "the retry, in the same process, "+when)
	s.replays(s.process().send(key, c.Valid()), r, "a second retry "+when)
	s.wantOne(when+" and a retry in the same process", whyAlone, doAlone)
	s.wantOneOutside(when + " and a retry in the same process")
}

// dies lets the process of the first attempt die at a point.
func (c Case[C, R]) dies(at point) func(s *trial[C, R]) {
	when := map[point]string{
		afterClaim: "after a process died between the claim and the handler", beforeCommit: "after a process died when the handler had returned and nothing was committed",
		afterCommit: "after a process died between the commit and the answer",
	}[at]
	return func(s *trial[C, R]) {
		key := s.key()
		if !s.perishes(s.process(), key, at) {
			return
		}
		want := 0
		if at == afterCommit {
			want = 1
		}
		if !s.wantRows(want, when, whyAlone, doAlone) {
			return // the retries can only add to that
		}
		if s.policy.leased && at != afterCommit {
			if r := s.process().send(key, c.Valid()); !is[*idempotency.InProgressError](r.err) {
				s.fault(fmt.Sprintf("%s and before its lease was over, a retry got %v", when, r), "nobody knows yet what the first attempt has done outside", doTwice)
			}
		}
		r := s.settled(key)
		if at == afterCommit {
			s.replays(r, reply[R]{died: true}, "the retry "+when)
		} else {
			s.done(r, "the retry "+when)
		}
		s.replays(s.process().send(key, c.Valid()), r, "a second retry "+when)
		s.wantOne(when+" and a client tried again until it had its answer,", whyAlone, doAlone)
		s.wantOneOutside(when + " and a client tried again until it had its answer,")
	}
}

// perishes sends the command to a process that dies.
func (s *trial[C, R]) perishes(p *process[C, R], key requestctx.Key, at point) bool {
	s.Helper()
	p.layer.die(at)
	r := p.send(key, s.c.Valid())
	if !r.died {
		s.fault(fmt.Sprintf("the attempt that was to die got %v", r), "nothing can be proved of a command that does not come to its commit", doFirst)
	}
	return r.died
}

func (c Case[C, R]) diesTakingOver(s *trial[C, R]) {
	key := s.key()
	if !s.perishes(s.process(), key, beforeCommit) {
		return
	}
	s.sys.Age(s.policy.lease + time.Minute)
	if s.policy.refuses {
		s.release(key)
	}
	p := s.process()
	p.layer.die(beforeCommit)
	if r := p.send(key, c.Valid()); !r.died && !is[*idempotency.AttemptsError](r.err) {
		s.fault(fmt.Sprintf("the attempt that took over and was to die got %v", r), whyTakeover, doAlone)
	}
	s.wantRows(0, "after the one who took over died as well, before the commit,", whyAlone, doAlone)
	s.done(s.settled(key), "the third attempt, after two had died,")
	s.wantOne("after the third attempt", whyTakeover, doAlone)
	s.wantOneOutside("after three attempts of which two died")
}

// comesBack holds an attempt until somebody else has done its work.
func (c Case[C, R]) comesBack(s *trial[C, R]) {
	p, key := s.process(), s.key()
	h := p.hold()
	answered := p.sent(s.within(), key, c.Valid())
	s.entered(h, answered)
	s.sys.Age(s.policy.lease + time.Minute)
	second := s.settled(key)
	s.done(second, "the attempt that took over")
	s.wantRows(1, "after a key was taken over", whyTakeover, doAlone)
	h.let()
	late := wait(s.T, answered, "the end of the late attempt")
	if late.out.State == requestctx.StateExecuted {
		s.fault("the late attempt was told that it had done the work", whyTakeover, doAlone)
	}
	s.wantRows(1, "after an attempt came back whose key had been taken over", "the late one has committed beside the lease, which no fence of ours can refuse", doAlone)
	s.wantOneOutside("after an attempt came back whose key had been taken over")
	s.replays(s.process().send(key, c.Valid()), second, "a retry after the late attempt")
}

func (c Case[C, R]) expires(s *trial[C, R]) {
	p, key := s.process(), s.key()
	first := p.send(key, c.Valid())
	if !s.done(first, "Valid") {
		return
	}
	s.sys.Age(s.policy.retention - s.policy.retention/4)
	if !s.replays(s.process().send(key, c.Valid()), first, "a retry within the retention") {
		return
	}
	s.sys.Age(s.policy.retention)
	r := s.process().send(key, c.Valid())
	const why = "after its retention a key is new work, on purpose, unless the policy says Tombstone"
	switch {
	case s.policy.tombstone:
		if !is[*idempotency.ExpiredError](r.err) {
			s.fault(fmt.Sprintf("after the retention of a command that keeps tombstones, its key got %v", r), why, "let Age move expires_at as well")
		}
		s.wantRows(1, "after an expired key was refused", why, doTwice)
	case r.err == nil && r.out.ReusedExpired:
		s.wantRows(2, "after an expired key was new work", why, "let the handler do its work again, or refuse it with idempotency.Final where the business has a natural key")
	case is[*idempotency.RefusedError](r.err): // by a natural key, or because the other side remembers longer
		s.wantRows(1, "after an expired key was refused by the handler", why, doTwice)
	default:
		s.fault(fmt.Sprintf("after the retention its key got %v", r), why, "let Age move expires_at as well, and let the handler refuse with idempotency.Final what it has done before")
	}
}

// staysInside is for Atomic commands.
func (c Case[C, R]) staysInside(s *trial[C, R]) {
	p := s.process()
	r := p.send(s.key(), c.Valid())
	if !s.done(r, "Valid") {
		return
	}
	if r.out.Detached {
		s.fault("the handler never asked for the transaction that it was given: it writes through a connection of its own (outcome Detached)", whyAlone, doAlone)
	}
	n, _, _ := p.seen.count()
	if n > 0 {
		s.fault(fmt.Sprintf("the handler called the outside %d times within its transaction", n), whyOutside, doLeased)
	} else if got := s.outside(); got > 0 {
		s.fault(fmt.Sprintf("the handler did something outside within its transaction: Outside counts %s", effects(got)), whyOutside, doLeased)
	}
}

// callsOut is for Leased commands: where they call.
func (c Case[C, R]) callsOut(s *trial[C, R]) {
	p := s.process()
	if !s.done(p.send(s.key(), c.Valid()), "Valid") {
		return
	}
	n, _, inside := p.seen.count()
	switch {
	case n == 0 && s.outside() == 0 && c.NothingOutside:
	case n == 0 && !c.NothingOutside:
		s.fault("no call to the outside was seen, and the command is Leased", "what nobody sees is not proved",
			"make HTTP requests with the handler's ctx, let the fake call registrytest.CalledOut(ctx), or say NothingOutside: true in the Case if it calls nothing")
	case c.NothingOutside:
		s.fault("NothingOutside is set, and the handler called the outside", "what is said to be absent is not looked at", "remove NothingOutside from the Case")
	case inside > 0:
		s.fault("the handler called the outside while its transaction was open: it calls InTx before it calls out",
			"the other side's slowness holds a connection and locks the record, and what it did stays when the transaction is rolled back", "call out first, and InTx then, with the answer")
	}
}

// diesInCall is the process that dies at the moment of its first call, which is when the key must have been asked for.
func (c Case[C, R]) diesInCall(s *trial[C, R]) {
	const when = "after a process died in its call and a client tried again until it had its answer,"
	p, key := s.process(), s.key()
	p.seen.dieInCall()
	p.send(key, c.Valid())
	if _, own, _ := p.seen.count(); own > 0 && p.layer.madeFree() {
		s.fault("the handler called the outside and has not asked for an idempotency.DownstreamKey before",
			"an attempt that dies in the call counts as one that has done nothing, its key is free at once, and the next one is a new request for the other side",
			"ask for idempotency.DownstreamKey(ctx, label) before the call and send it along, also where the other side can make no use of it")
		return
	}
	s.done(s.settled(key), "the retry after a process died in its call")
	s.wantOne(when, whyTakeover, doAlone)
	s.wantOneOutside(when)
}

// answerLost is the call that was made and whose answer did not come.
func (c Case[C, R]) answerLost(s *trial[C, R]) {
	p, key := s.process(), s.key()
	p.seen.loseNext()
	r := p.send(key, c.Valid())
	lost, all := p.seen.loss()
	if !lost {
		s.fault(fmt.Sprintf("no answer of the outside came by that could be lost, and it got %v", r), "what nobody sees is not proved",
			"make HTTP requests with the handler's ctx, or let the fake return registrytest.CalledOut(ctx) when it has done its work")
		return
	}
	const when = "after the answer of the outside was lost and a client tried again until it had its answer,"
	const do = "mark such an error with idempotency.Unknown(err); idempotency.Final is for what the other side has answered, and an unmarked error for what is certain not to have happened"
	if all { // a handler that has asked again by itself knows more
		wrong, why := "", ""
		switch {
		case is[*idempotency.RefusedError](r.err):
			wrong, why = "the handler made a final refusal of that (idempotency.Final)", "the other side has done its work, and the refusal is replayed for ever: the money is taken and there is no order"
		case r.out.State == requestctx.StateFreed:
			wrong, why = "the handler returned an error that says that nothing has happened", "the key is free at once and even where the policy would leave it to a person: the other side has done its work, and is asked for it again"
		case r.err == nil && r.out.State == requestctx.StateExecuted:
			wrong, why = "the handler went on as if it knew what had happened", "an outcome is recorded that nobody knows: an order for which no money was taken, or money for an order that counts as failed"
		}
		if wrong != "" {
			s.fault("the answer of the outside was lost, and "+wrong, why, do)
			return
		}
	}
	r = s.settled(key)
	if r.err != nil {
		s.fault(fmt.Sprintf("%s it got %v", when, r), whyTakeover, do)
	}
	s.wantOne(when, whyTakeover, do)
	s.wantOneOutside(when)
}
