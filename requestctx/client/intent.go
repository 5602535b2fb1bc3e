package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/tekil-go/tekil/requestctx"
	"github.com/tekil-go/tekil/requestctx/internal/derive"
)

// DefaultTTLHours is how long an intent may be resumed: 24 hours, which is the shortest time that a server keeps an outcome.
const DefaultTTLHours = 24

// MaxTTLHours is the longest time to live of an intent: ten years.
const MaxTTLHours = 10 * 366 * 24

// Options says what kind of intent is meant. The zero Options is an intent without a draft.
type Options struct {
	// DraftID is the identity of the draft that the intent belongs to, such as a cart's. The key is then derived from the intent's
	// name, the draft's id and Generation, so a restarted program or another device comes to the same key without any storage
	// (rule key-2). It is made once per draft and is not made of content, user or day. Where callers are anonymous it must not
	// be guessable.
	DraftID string
	// Generation counts the times that a person has decided to make this draft new work (rule key-6). 0 counts as 1. It is kept with the
	// draft by whoever keeps that, and always given once it is above 1: an intent that has ended takes nothing with it, and generation 1 may be
	// work that was never done.
	Generation int
	// ProducedBy says who made the intent, such as "importer@host-3". It is stored and never sent.
	ProducedBy string
	// TTLHours is how long the intent may be sent or resumed, in hours; 0 means [DefaultTTLHours]. It should not be longer than
	// the server keeps outcomes, and must not be longer than [MaxTTLHours].
	TTLHours int
}

// Record is what is stored of an intent (rule key-7). Printed or logged by itself, it shows its key masked. Its JSON holds the key, and so
// may what is printed of a value that has a Record in it: keep an [Intent] there, which never shows it.
type Record struct {
	Intent     string    `json:"intent"`
	Key        string    `json:"key"`
	DraftID    string    `json:"draft_id,omitempty"`
	ProducedBy string    `json:"produced_by,omitempty"`
	CreatedAt  time.Time `json:"created_at"`
	TTLHours   int       `json:"ttl_hours"`
}

// String is the intent's name, its draft and its key, masked.
func (r Record) String() string {
	masked := "…"
	if key, err := requestctx.ParseKey(r.Key); err == nil {
		masked = key.Masked()
	}
	return strings.TrimSpace(r.Intent+" "+r.DraftID) + " (" + masked + ")"
}

// Format writes String, whatever the verb.
func (r Record) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, r.String()) }

// LogValue is String.
func (r Record) LogValue() slog.Value { return slog.StringValue(r.String()) }

// Intent is one thing that is meant to be done, with its key. It does not change, and it is safe for concurrent use. The zero
// Intent is none, and nothing is sent under it. Printed or logged, it shows its key masked.
//
// It is a pointer to a pointer so that fmt shows an address where an Intent is a field that is not exported, and its methods are not
// called.
type Intent struct{ p **intent }

type intent struct {
	record  Record
	key     requestctx.Key
	store   Store
	resumed bool
}

// New makes an intent that is kept in memory alone. Without a draft its key is a fresh UUID, and when the program dies a second
// attempt is new work (rule key-2).
func New(name string, o Options) (Intent, error) {
	problem := ""
	switch {
	case name == "":
		problem = "an intent needs a name"
	case o.DraftID == "" && o.Generation != 0:
		problem = "a generation belongs to a draft, and DraftID is empty"
	case o.Generation < 0 || o.TTLHours < 0:
		problem = "Generation and TTLHours must not be negative"
	case o.TTLHours > MaxTTLHours:
		problem = "TTLHours is more than ten years"
	case !text(name) || !text(o.DraftID) || !text(o.ProducedBy):
		problem = "the intent's name, DraftID and ProducedBy must be UTF-8 without NUL"
	}
	if problem != "" {
		return Intent{}, errors.New("client: " + problem)
	}
	r := Record{Intent: name, DraftID: o.DraftID, ProducedBy: o.ProducedBy, CreatedAt: time.Now().UTC().Truncate(time.Second), TTLHours: o.TTLHours}
	if r.TTLHours == 0 {
		r.TTLHours = DefaultTTLHours
	}
	if o.DraftID != "" {
		r.Key = draftKey(name, o)
	} else {
		id, err := uuid.NewRandom()
		if err != nil {
			return Intent{}, fmt.Errorf("client: no key could be made: %w", err)
		}
		r.Key = id.String()
	}
	return fromRecord(r, nil)
}

// text reports whether every store keeps s as it is.
func text(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }

// Begin makes an intent and stores it, or resumes the one that is stored under the same name and draft: with its key, whoever made
// it (rule key-2). A stored intent whose time is over is not resumed; the error is an [*ExpiredError], and [Renew] makes a new one.
// It is an error, too, if the options name a generation and another one is stored.
func Begin(ctx context.Context, s Store, name string, o Options) (Intent, error) {
	i, err := keep(ctx, s, name, o)
	switch {
	case err != nil:
		return Intent{}, err
	case i.Expired():
		return Intent{}, i.expired()
	case o.Generation > 0 && i.Key().String() != draftKey(name, o):
		return Intent{}, errors.New("client: the intent that is stored for this draft is of another generation; Renew puts this one in its place")
	}
	return i, nil
}

func draftKey(name string, o Options) string {
	return Derive("draft/1", name, o.DraftID, strconv.Itoa(max(o.Generation, 1)))
}

// Renew puts a new intent in the place of the one that is stored under the same name and draft, if any. It is for the explicit
// decision that this is to be new work, although the first attempt may have succeeded (rule key-6). With a draft it needs another
// Generation. Of several at once one wins, and all get that one.
func Renew(ctx context.Context, s Store, name string, o Options) (Intent, error) {
	old, err := keep(ctx, s, name, o)
	if err != nil || !old.Resumed() {
		return old, err
	}
	if fresh, err := New(name, o); err != nil {
		return Intent{}, err
	} else if fresh.Key() == old.Key() {
		return Intent{}, errors.New("client: a renewed intent of a draft needs another Generation, or its key would be the old one")
	}
	if err := s.Remove(ctx, old.Record()); err != nil {
		return Intent{}, fmt.Errorf("client: the old intent could not be removed: %w", err)
	}
	return keep(ctx, s, name, o)
}

func keep(ctx context.Context, s Store, name string, o Options) (Intent, error) {
	made, err := New(name, o)
	if err != nil {
		return Intent{}, err
	}
	stands, found, err := s.Keep(ctx, made.Record())
	if err != nil {
		return Intent{}, fmt.Errorf("client: the intent could not be stored: %w", err)
	}
	i, err := fromRecord(stands, s)
	if err == nil {
		(*i.p).resumed = found
	}
	return i, err
}

func wrap(p *intent) Intent { return Intent{&p} }

func fromRecord(r Record, s Store) (Intent, error) {
	key, err := requestctx.ParseKey(r.Key)
	if err != nil || r.Intent == "" || r.TTLHours <= 0 || r.TTLHours > MaxTTLHours || r.CreatedAt.IsZero() {
		return Intent{}, errors.New("client: the stored intent is damaged: its name, key, time or time to live is missing or wrong")
	}
	return wrap(&intent{record: r, key: key, store: s}), nil
}

// For gives the intent of one call of several that are made under i: its key is derived from i's key, the method, the URL's path
// as it is sent (without host and query) and a label, which tells two calls of one method and path apart and is "" otherwise
// (rule key-3). It is not stored, and its success does not end i; that is for [Intent.Done].
func (i Intent) For(method, path, label string) Intent {
	rooted := path
	if strings.HasPrefix(path, "/") {
		rooted = "http://host" + path // or a path of //x/y would have a host
	}
	if u, err := url.Parse(rooted); err == nil {
		path = u.EscapedPath()
	}
	return i.call(method, path, label)
}

// call is For with a path that is escaped.
func (i Intent) call(method, path, label string) Intent {
	if i.p == nil {
		return i
	}
	child := **i.p
	child.store = nil
	child.record.Key = Derive("call/1", (*i.p).record.Key, strings.ToUpper(method), cmp.Or(path, "/"), label)
	child.key, _ = requestctx.ParseKey(child.record.Key) // 43 characters that are legal
	return wrap(&child)
}

// Derive makes a key of parts: SHA-256 over each part's length in bytes, a colon and the part, as base64url. The browser module
// comes to the same keys. Do not derive a key from content, user or time; [Options].DraftID and [Intent.For] say from what.
func Derive(parts ...string) string { return derive.Key(parts...) }

// Done removes the intent from the store that it came from, if any. [Do] does so by itself on a success. It is for programs that
// send by [Client.RoundTrip] or make several calls, and for the decision to give the intent up.
func (i Intent) Done(ctx context.Context) error {
	if i.p == nil || (*i.p).store == nil {
		return nil
	}
	if err := (*i.p).store.Remove(ctx, (*i.p).record); err != nil {
		return fmt.Errorf("client: the intent could not be removed: %w", err)
	}
	return nil
}

// Record is what is stored of the intent. It holds the key.
func (i Intent) Record() Record {
	if i.p == nil {
		return Record{}
	}
	return (*i.p).record
}

// Key is the intent's key, and the zero Key for the zero Intent. It belongs in the header and in storage; people are shown its
// Masked form (rule key-4).
func (i Intent) Key() requestctx.Key {
	if i.p == nil {
		return requestctx.Key{}
	}
	return (*i.p).key
}

// Resumed reports whether [Begin] found the intent in the store, so that an earlier attempt may have done the work.
func (i Intent) Resumed() bool { return i.p != nil && (*i.p).resumed }

// Expires is when the intent's time is over.
func (i Intent) Expires() time.Time {
	r := i.Record()
	return r.CreatedAt.Add(time.Duration(r.TTLHours) * time.Hour)
}

// Expired reports whether the intent's time is over. It is then neither resumed nor sent (rule key-7).
func (i Intent) Expired() bool { return i.p != nil && !time.Now().Before(i.Expires()) }

func (i Intent) expired() error {
	return &ExpiredError{Intent: i, At: i.Expires()}
}

// String is the intent's name, its draft and its key, masked.
func (i Intent) String() string {
	if i.p == nil {
		return "no intent"
	}
	return (*i.p).record.String()
}

// Format writes String, whatever the verb.
func (i Intent) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, i.String()) }

// LogValue is String.
func (i Intent) LogValue() slog.Value { return slog.StringValue(i.String()) }

type contextKey struct{}

type bound struct {
	intent Intent
	label  string
}

// With says under which intent the requests of ctx are sent by [Client.RoundTrip]. The key of each write is derived from the
// intent, the method and the path.
func With(ctx context.Context, i Intent) context.Context { return WithLabel(ctx, i, "") }

// WithLabel is With for the second and further call of one method and path; see [Intent.For].
func WithLabel(ctx context.Context, i Intent, label string) context.Context {
	return context.WithValue(ctx, contextKey{}, bound{i, label})
}
