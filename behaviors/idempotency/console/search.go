package console

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/tekil-go/tekil/behaviors/idempotency"
)

// maxRecords bounds an answer. Each search of an Admin has the same bound.
const maxRecords = 100

// kind is something by which a record is found.
type kind struct {
	Name  string // in forms and JSON
	Words string // for people
	// search makes the search for a text; false where the text cannot be such a thing.
	search func(text string) (idempotency.Search, bool)
	// only is true where the text names a record by its primary key, so that no more need be looked for.
	only bool
}

// noID is no record's, and a search for it would ask for nothing.
var noID idempotency.ID

// kinds are in the order in which they are tried: what the primary key finds comes first, and what may read the whole table last.
var kinds = []kind{
	{"operation_id", "operation id", func(text string) (idempotency.Search, bool) {
		id, ok := idempotency.ParseOperation(strings.ToLower(text))
		return idempotency.Search{ID: id}, ok && id != noID
	}, true},
	{"id", "record id", func(text string) (idempotency.Search, bool) {
		raw, err := hex.DecodeString(strings.ReplaceAll(text, "-", ""))
		if err != nil || len(raw) != len(idempotency.ID{}) {
			return idempotency.Search{}, false
		}
		return idempotency.Search{ID: idempotency.ID(raw)}, idempotency.ID(raw) != noID
	}, true},
	{"key", "key", func(text string) (idempotency.Search, bool) { return idempotency.Search{Key: text}, true }, false},
	{"external_ref", "external reference", func(text string) (idempotency.Search, bool) { return idempotency.Search{ExternalRef: text}, true }, false},
	{"draft_id", "draft id", func(text string) (idempotency.Search, bool) { return idempotency.Search{DraftID: text}, true }, false},
	{"request_id", "request id", func(text string) (idempotency.Search, bool) { return idempotency.Search{RequestID: text}, true }, false},
}

const (
	byAny   = "any"
	byStuck = "stuck"
)

// searched is what is looked for.
type searched struct {
	Text, By, Tenant, Client, Command string
}

func (q *searched) narrow(s idempotency.Search) idempotency.Search {
	for part, to := range map[*string]**string{&q.Tenant: &s.Tenant, &q.Client: &s.Client} {
		if *part != "" {
			*to = part
		}
	}
	if strings.Contains(q.Command, " ") { // an operation, which the store compares; a command's name may stand behind many routes
		s.Operation = &q.Command
	}
	return s
}

// foundView is what was found.
type foundView struct {
	// Summary is the list in a sentence.
	Summary string       `json:"summary"`
	Records []recordView `json:"records"`
	// Truncated is true where there may be more than are given.
	Truncated bool `json:"truncated"`
	// NotSearched are the kinds for which no time was left.
	NotSearched []string `json:"not_searched,omitempty"`
	// Stuck is true where the list is of what is stuck or has failed.
	Stuck bool `json:"-"`
}

func (x *exchange) searchForm() (*answer, *problem) {
	fields, p := x.body("q", "by", "tenant", "client", "command")
	if p != nil {
		return nil, p
	}
	return x.search(searched{fields["q"], cmp.Or(fields["by"], byAny), fields["tenant"], fields["client"], fields["command"]})
}

// search looks for one thing in every kind that it may be, one after the other, because each may read the whole table.
func (x *exchange) search(q searched) (*answer, *problem) {
	ctx, cancel := context.WithTimeout(x.r.Context(), x.cfg.Timeout)
	defer cancel()
	tries, p := triesFor(&q)
	if p != nil {
		return nil, p
	}
	at := map[idempotency.ID]int{}
	var found []idempotency.Stored
	var by [][]string
	v := &foundView{Records: []recordView{}, Stuck: q.By == byStuck}
	a := &answer{view: "found", data: v, found: &q}
	for i, k := range tries {
		s, _ := k.search(q.Text)
		got, err := x.cfg.Admin.Find(ctx, q.narrow(s))
		if err != nil {
			for _, k := range tries[i:] {
				v.NotSearched = append(v.NotSearched, k.Name)
			}
			p := x.failed(ctx, err, x.slow(tries, tries[i:]))
			if p == errAway || len(found) == 0 {
				return nil, p
			}
			a.alert = p.Text + " There may be more than is shown."
			break
		}
		v.Truncated = v.Truncated || len(got) >= maxRecords
		for _, rec := range got {
			if q.Command != "" && q.Command != rec.Scope.Command() && q.Command != rec.Scope.Operation {
				continue
			}
			n, met := at[rec.ID]
			if !met {
				n, at[rec.ID] = len(found), len(found)
				found, by = append(found, rec), append(by, nil)
			}
			if k.Name != byStuck {
				by[n] = append(by[n], k.Name)
			}
		}
		if k.only && len(found) > 0 {
			break
		}
	}
	for i := range found {
		v.Records = append(v.Records, viewOf(&found[i], by[i]))
	}
	slices.SortStableFunc(v.Records, func(a, b recordView) int { return b.FirstMet.Compare(a.FirstMet) })
	if len(v.Records) > maxRecords {
		v.Records, v.Truncated = v.Records[:maxRecords], true
	}
	v.Summary = summary(v.Records, v.Stuck)
	x.log(slog.LevelInfo, "console: records were searched for", slog.String("who", x.who), slog.String("by", q.By), slog.Int("records", len(v.Records)))
	if only := v.Records; len(only) == 1 && !x.json && !v.Stuck && !v.Truncated && v.NotSearched == nil {
		x.redirect(x.root() + "records/" + only[0].OperationID + "?" + url.Values{"by": only[0].FoundBy}.Encode())
		return nil, nil
	}
	if len(v.Records) > 0 {
		q.Text = "" // it may be a key
	}
	return a, nil
}

// triesFor gives the kinds that a text may be.
func triesFor(q *searched) ([]kind, *problem) {
	var tries []kind
	if q.By == byStuck {
		return []kind{{byStuck, "what is stuck or has failed", func(string) (idempotency.Search, bool) { return idempotency.Search{Stuck: true}, true }, false}}, nil
	}
	if q.Text == "" {
		return nil, malformed("Say what to look for: a key, an external reference, or the id of a draft, request, operation or record.")
	}
	for _, k := range kinds {
		if q.By != byAny && q.By != k.Name {
			continue
		}
		if _, ok := k.search(q.Text); ok {
			tries = append(tries, k)
		} else if q.By != byAny {
			return nil, malformed("What was given does not have the form of this kind: %s.", k.Words)
		}
	}
	if tries == nil {
		return nil, malformed("The field by must be %s, %s or a kind: %s.", byAny, byStuck, strings.Join(names(), ", "))
	}
	return tries, nil
}

func names() (names []string) {
	for _, k := range kinds {
		names = append(names, k.Name)
	}
	return names
}

// wordsFor gives the words for kinds.
func wordsFor(names []string) (words []string) {
	for _, k := range kinds {
		if slices.Contains(names, k.Name) {
			words = append(words, k.Words)
		}
	}
	return words
}

// slow is said of a search that had no time for some kinds.
func (x *exchange) slow(tries, left []kind) string {
	var words []string
	for _, k := range left {
		words = append(words, k.Words)
	}
	text := fmt.Sprintf("The search took longer than %v and has not looked for: %s.", x.cfg.Timeout, strings.Join(words, ", "))
	if len(tries) > 1 {
		text += " Say which kind it is, to look for that alone."
	}
	return text + " Where one kind alone is too slow the table wants an index for it: the documentation of Find in your store's package has the line of SQL."
}

// summary says what the records of a list are, and whether one thing was done more than once.
func summary(records []recordView, stuck bool) string {
	if len(records) == 0 {
		if stuck {
			return "Nothing is stuck, and nothing has failed."
		}
		return "Nothing was found. A record that has expired may have been removed, and one that is being worked on in an Atomic command is seen when it is done. " +
			"An external reference is in a record only when it is completed; the draft of a Leased command is there from the start."
	}
	moods := map[string]int{}
	for _, r := range records {
		moods[r.Mood]++
	}
	parts := []string{}
	for _, mood := range []string{moodDone, moodRefused, moodOpen, moodStuck, moodFailed} {
		if n := moods[mood]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, mood))
		}
	}
	text := fmt.Sprintf("%s: %s.", count(len(records), "record"), strings.Join(parts, ", "))
	for _, r := range repeats(records) {
		text += fmt.Sprintf(" %s was done %d times under this %s, with different keys, clients, tenants or routes: to the server these were different intents.",
			r.command, r.n, r.words)
	}
	return text
}

type repeat struct {
	command, words string
	n              int
}

// repeats gives the commands that were done more than once, among the records that were found by the same kind: a draft and a request id that
// happen to be the same text have nothing to do with each other. Where two kinds have found the same records, it gives the first one.
func repeats(records []recordView) (all []repeat) {
	met := map[string]bool{}
	for _, k := range kinds {
		ids, n := map[string]string{}, map[string]int{}
		for _, r := range records {
			if r.Mood == moodDone && slices.Contains(r.FoundBy, k.Name) {
				ids[r.Command] += " " + r.ID
				n[r.Command]++
			}
		}
		for _, command := range slices.Sorted(maps.Keys(ids)) {
			if n[command] > 1 && !met[ids[command]] {
				met[ids[command]] = true
				all = append(all, repeat{command, k.Words, n[command]})
			}
		}
	}
	return all
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// find gives the record with an id.
func (x *exchange) find(ctx context.Context, id idempotency.ID) (*idempotency.Stored, *problem) {
	ctx, cancel := context.WithTimeout(ctx, x.cfg.Timeout)
	defer cancel()
	found, err := x.cfg.Admin.Find(ctx, idempotency.Search{ID: id})
	switch {
	case err != nil:
		return nil, x.failed(ctx, err, fmt.Sprintf("The store took longer than %v to give the record. Try again in a moment.", x.cfg.Timeout))
	case len(found) == 0:
		return nil, errNoRecord
	}
	return &found[0], nil
}

func (x *exchange) record(id idempotency.ID) (*answer, *problem) {
	rec, p := x.find(x.r.Context(), id)
	if p != nil {
		return nil, p
	}
	query := x.r.URL.Query()
	v := x.look(rec)
	for _, k := range kinds {
		if slices.Contains(query["by"], k.Name) {
			v.FoundBy = append(v.FoundBy, k.Name)
		}
	}
	a := &answer{view: "record", data: v}
	if v.Mood == moodFailed && query.Get("released") == v.AttemptID { // and nobody has had the key since
		a.notice = "Released. The next request with this key and the same payload runs."
	}
	return a, nil
}

// look gives a record to whoever asks for that one, and the log has it.
func (x *exchange) look(rec *idempotency.Stored) *recordView {
	v := viewOf(rec, nil)
	x.log(slog.LevelInfo, "console: a record was looked at", slog.String("who", x.who), slog.String("operation_id", v.OperationID))
	return &v
}

// release frees a key. The record is shown as it is then, whether it was released or not; where it was, a browser is sent to it, so that loading the page
// again does not ask for another release.
func (x *exchange) release(id idempotency.ID) (*answer, *problem) {
	fields, p := x.body("reason", "seen", "live_lease")
	if p != nil {
		return nil, p
	}
	i := idempotency.Intervention{By: x.who, Reason: fields["reason"], LiveLease: fields["live_lease"] == "true"}
	raw, err := hex.DecodeString(fields["seen"])
	if copy(i.Seen[:], raw); err != nil || len(raw) != len(i.Seen) || i.Seen == (idempotency.AttemptID{}) { // zero would compare nothing
		return nil, malformed("The field seen must be the attempt_id of the record as you saw it.")
	}
	if i.Reason == "" {
		return nil, malformed("Say why the key is released: the reason is kept in the log.")
	}
	// Who hangs up has still asked for it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(x.r.Context()), x.cfg.Timeout)
	defer cancel()
	err = x.cfg.Admin.Release(ctx, id, i)
	x.counted.Store(nil) // the counts are others now
	why := ""
	switch refused := (*idempotency.AdminError)(nil); {
	case errors.As(err, &refused):
		why = refused.Reason
	case errors.Is(err, idempotency.ErrBusy):
		why = "an attempt holds the record at this moment; look again"
	case err != nil:
		p := *x.failed(ctx, err, "")
		p.Text = "The store did not say whether the key was released. Look at the record before you try again."
		return nil, &p
	}
	rec, p := x.find(context.WithoutCancel(x.r.Context()), id)
	switch {
	case p != nil && err == nil:
		return nil, &problem{"The key was released. The record cannot be shown just now.", p.Code, p.status, ""}
	case p != nil:
		return nil, p
	case err == nil && !x.json:
		x.redirect(x.root() + "records/" + id.Operation() + "?" + url.Values{"released": {hex.EncodeToString(rec.Attempt[:])}}.Encode())
		return nil, nil
	case err == nil:
		return &answer{view: "record", data: x.look(rec)}, nil
	}
	if rec.State == idempotency.InProgress && rec.LeaseLeft > 0 && !i.LiveLease && rec.Attempt == i.Seen {
		why = "an attempt is most likely at work. Wait until its lease is over, or say that a live lease is meant"
	}
	refusal := &problem{"Not released: " + why + ".", (*idempotency.AdminError).Code(nil), http.StatusConflict, ""}
	if x.json {
		return nil, refusal
	}
	return &answer{status: refusal.status, view: "record", data: x.look(rec), alert: refusal.Text}, nil
}

// countsView is how the records are.
type countsView struct {
	// Records is how many there are, Stuck how many of them are stuck, Failed how many have failed.
	Records int64       `json:"records"`
	Stuck   int64       `json:"stuck"`
	Failed  int64       `json:"failed"`
	Counts  []countView `json:"counts"`
	// Commands are the rows of the page.
	Commands []commandCounts `json:"-"`
}

type countView struct {
	Command   string `json:"command"`
	Operation string `json:"operation"`
	State     string `json:"state"`
	Stuck     bool   `json:"stuck"`
	Expired   bool   `json:"expired"`
	Records   int64  `json:"records"`
}

// commandCounts are those of a command, by whatever route it came.
type commandCounts struct {
	Command                                            string
	Completed, InProgress, Stuck, Failed, All, Expired int64
}

func countsOf(counts []idempotency.Count) *countsView {
	v := &countsView{Counts: []countView{}}
	at := map[string]int{}
	for _, c := range counts {
		v.Counts = append(v.Counts, countView{c.Command(), c.Operation, string(c.State), c.Stuck, c.Expired, c.Records})
		n, met := at[c.Command()]
		if !met {
			n, at[c.Command()] = len(v.Commands), len(v.Commands)
			v.Commands = append(v.Commands, commandCounts{Command: c.Command()})
		}
		row := &v.Commands[n]
		v.Records, row.All = v.Records+c.Records, row.All+c.Records
		if c.Expired {
			row.Expired += c.Records
		}
		switch {
		case c.Stuck:
			v.Stuck, row.Stuck = v.Stuck+c.Records, row.Stuck+c.Records
		case c.State == idempotency.Completed:
			row.Completed += c.Records
		case c.State == idempotency.Failed:
			v.Failed, row.Failed = v.Failed+c.Records, row.Failed+c.Records
		default:
			row.InProgress += c.Records
		}
	}
	slices.SortFunc(v.Commands, func(a, b commandCounts) int { return strings.Compare(a.Command, b.Command) })
	return v
}
