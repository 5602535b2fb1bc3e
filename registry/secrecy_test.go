package registry_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/memstore"
	"github.com/tekil-go/tekil/behaviors/validation"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/registry"
	"github.com/tekil-go/tekil/requestctx"
)

const (
	card     = "4111111111111111"
	password = "correct-horse-p@ss"
)

// login is a command with what must be in no log. Its mood says what goes wrong.
type login struct {
	Card     string `json:"card"     validate:"required,numeric,max=16" idempotency:"secret"`
	Password string `json:"password" validate:"min=8"                   idempotency:"secret"`
	Extra    string `json:"extra"    validate:"max=100"`
	Mood     string `json:"mood"`
}

func (login) CommandName() bus.Name[session] { return "shop.login" }
func (login) Idempotent()                    {}

func (l login) Normalize() login {
	if l.Mood == "normalize panics" {
		panic(l)
	}
	return l
}

func (l login) Validate() error {
	switch l.Mood {
	case "validate refuses":
		return fmt.Errorf("refused: %+v", l)
	case "validate refuses a field":
		return errors.Join(validation.Field("card", "luhn", "is no card number"), fmt.Errorf("refused: %+v", l))
	case "validate panics":
		panic(fmt.Sprintf("%+v", l))
	}
	return nil
}

// session is a result that can refuse to be stored, and then quotes itself.
type session struct {
	Token string `json:"token"`
	Bad   *badResult
}

type badResult struct{ text string }

func (b *badResult) MarshalJSON() ([]byte, error) { return nil, errors.New(b.text) }
func (b *badResult) UnmarshalJSON([]byte) error   { return nil }

// paperclip #4759: there, every refused request was logged with its body. Here no end of a dispatch lets a value out.
func TestBR56_NeitherCardNorPasswordIsInAnyLineOrError(t *testing.T) {
	t.Parallel()
	good := login{Card: card, Password: password, Mood: "good"}
	in := func(mood string) login { l := good; l.Mood = mood; return l }
	for name, c := range map[string]struct {
		cmd     login
		prepare func(*testing.T, *vault)
		want    string // the outcome on the line
		own     bool   // the error is the application's own and is given to the caller as it is
	}{
		"success":                             {cmd: good, want: "OK"},
		"replay":                              {cmd: good, prepare: first(good), want: "OK"},
		"conflict":                            {cmd: in("other"), prepare: first(good), want: "IDEMPOTENCY_KEY_CONFLICT"},
		"conflict by the password alone":      {cmd: login{Card: card, Password: password + "!", Mood: "good"}, prepare: first(good), want: "IDEMPOTENCY_KEY_CONFLICT"},
		"tags refuse the card":                {cmd: login{Card: card + password, Password: password}, want: "VALIDATION_FAILED"},
		"tags refuse the password":            {cmd: login{Card: card, Password: card[:7]}, want: "VALIDATION_FAILED"},
		"Validate refuses with the command":   {cmd: in("validate refuses"), want: "VALIDATION_FAILED"},
		"Validate refuses a field":            {cmd: in("validate refuses a field"), want: "VALIDATION_FAILED"},
		"Validate panics with the command":    {cmd: in("validate panics"), want: "VALIDATION_PANIC"},
		"Normalize panics with the command":   {cmd: in("normalize panics"), want: "VALIDATION_PANIC"},
		"the handler's error wraps it":        {cmd: in("error"), want: "INTERNAL", own: true},
		"the handler's coded error quotes it": {cmd: in("coded error"), want: "LOGIN_FAILED", own: true},
		"the handler panics with it":          {cmd: in("panic"), want: "PANIC", own: true},
		"the handler panics with an error":    {cmd: in("panic with an error"), want: "PANIC", own: true},
		"unknown outcome":                     {cmd: in("unknown"), want: "IDEMPOTENCY_HANDLER_FAULT"},
		"a result that cannot be stored":      {cmd: in("bad result"), want: "IDEMPOTENCY_RESULT_UNENCODABLE"},
		"text that is not UTF-8":              {cmd: login{Card: card, Password: password, Extra: card + password + "\xff"}, want: "IDEMPOTENCY_FINGERPRINT_FAILED"},
		"the store is away":                   {cmd: good, prepare: func(_ *testing.T, v *vault) { v.store.away = true }, want: "IDEMPOTENCY_STORE_UNAVAILABLE"},
		"in progress":                         {cmd: good, prepare: running(good), want: "IDEMPOTENCY_REQUEST_IN_PROGRESS"},
		"no key":                              {cmd: good, prepare: func(_ *testing.T, v *vault) { v.values.Key = requestctx.Key{} }, want: "IDEMPOTENCY_KEY_MISSING"},
		"a key that is a card number": {cmd: good, prepare: func(_ *testing.T, v *vault) {
			_, v.values.KeyErr = requestctx.ParseKey(card + " " + password)
		}, want: "IDEMPOTENCY_KEY_INVALID"},
		"no client":          {cmd: good, prepare: func(_ *testing.T, v *vault) { v.values.Scope = requestctx.Scope{} }, want: "IDEMPOTENCY_SCOPE_MISSING"},
		"a wrapper's fault":  {cmd: in("error"), prepare: func(_ *testing.T, v *vault) { v.swallow = true }, want: "AROUND_FAULT"},
		"a guard that quits": {cmd: good, prepare: func(_ *testing.T, v *vault) { v.permit = errForbidden }, want: "FORBIDDEN"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := newVault(t)
			if c.prepare != nil {
				c.prepare(t, v)
			}
			v.out.reset()
			thrown, err := v.send(t.Context(), c.cmd)
			lines := v.out.String()
			for _, word := range []string{`"command":"shop.login"`, `"outcome":"` + c.want + `"`, `"duration":`, `"request_id":`} {
				if !strings.Contains(lines, word) {
					t.Errorf("the line lacks %s:\n%s", word, lines)
				}
			}
			keeps(t, "the log", lines)
			switch {
			case c.own && err == nil && thrown == nil:
				t.Error("the application's own error did not come through")
			case !c.own && err != nil:
				keeps(t, "the error", fmt.Sprintf("%v\n%+v\n%s", err, err, bus.CodeOf(err)))
			}
			for _, rec := range v.store.Records() {
				keeps(t, "the record", fmt.Sprintf("%+v %s", rec, rec.Result))
			}
		})
	}
}

func keeps(t *testing.T, what, text string) {
	t.Helper()
	// Not even the first six digits.
	for _, value := range []string{card[:6], password, password[:7]} {
		if strings.Contains(text, value) {
			t.Errorf("%s holds %q:\n%s", what, value, text)
		}
	}
}

// vault is a bus whose log is a buffer of JSON lines at every level, with stack traces.
type vault struct {
	*bus.Bus
	out     *buffer
	store   *awayStore
	values  requestctx.Values
	swallow bool
	permit  error
	entered chan struct{} // closed when the slow handler runs
	leave   chan struct{} // ends it
}

func newVault(t *testing.T) *vault {
	t.Helper()
	key, err := requestctx.ParseKey(theKey)
	if err != nil {
		t.Fatal(err)
	}
	v := &vault{
		out: new(buffer), store: &awayStore{Store: memstore.New()}, entered: make(chan struct{}), leave: make(chan struct{}),
		values: requestctx.Values{ID: "attempt-1", Key: key, Scope: requestctx.Scope{Client: "acme-erp"}},
	}
	core := zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.AddSync(v.out), zapcore.DebugLevel)
	reg := registry.New(registry.Config{
		Logger: zap.New(core, zap.AddCaller(), zap.AddStacktrace(zapcore.DebugLevel)),
		Store:  v.store, Secrets: []idempotency.Secret{{Key: bytes.Repeat([]byte("k"), 32)}},
		Permit: []bus.Guard{func(context.Context, bus.Invocation) error { return v.permit }},
		Around: []registry.Around{func(ctx context.Context, _ bus.Invocation, next func(context.Context) error) error {
			if err := next(ctx); !v.swallow {
				return err
			}
			return nil
		}},
	})
	registry.Handle(reg, v.handle)
	v.Bus = build(t, reg)
	return v
}

func (v *vault) handle(_ context.Context, cmd login) (session, error) {
	switch cmd.Mood {
	case "error":
		return session{}, fmt.Errorf("login failed for %+v: %w", cmd, errBoom)
	case "coded error":
		return session{}, &codedError{"LOGIN_FAILED", fmt.Sprintf("login failed for %+v", cmd)}
	case "panic":
		panic(cmd)
	case "panic with an error":
		panic(fmt.Errorf("%+v", cmd))
	case "unknown":
		return session{}, idempotency.Unknown(fmt.Errorf("%+v", cmd))
	case "bad result":
		return session{Bad: &badResult{fmt.Sprintf("%+v", cmd)}}, nil
	}
	if cmd.Extra == "slow" {
		close(v.entered)
		<-v.leave
	}
	return session{Token: "t-1"}, nil
}

func (v *vault) send(ctx context.Context, cmd login) (thrown any, err error) {
	defer func() { thrown = recover() }()
	ctx, _ = requestctx.New(ctx, v.values)
	_, err = bus.Send(ctx, v.Bus, cmd)
	return nil, err
}

// first completes the key with the command.
func first(cmd login) func(*testing.T, *vault) {
	return func(t *testing.T, v *vault) {
		if thrown, err := v.send(t.Context(), cmd); err != nil || thrown != nil {
			t.Fatal(err, thrown)
		}
	}
}

// running leaves an attempt of the key running until the test ends.
func running(cmd login) func(*testing.T, *vault) {
	return func(t *testing.T, v *vault) {
		slow := cmd
		slow.Extra = "slow"
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = v.send(context.WithoutCancel(t.Context()), slow)
		}()
		<-v.entered
		t.Cleanup(func() { close(v.leave); <-done })
	}
}

// awayStore is a store that can go away.
type awayStore struct {
	*memstore.Store
	away bool
}

func (s *awayStore) Begin(ctx context.Context, c idempotency.Claim) (idempotency.Transaction, error) {
	if s.away {
		return nil, errors.New("connection refused")
	}
	return s.Store.Begin(ctx, c)
}

// buffer is a log in memory.
type buffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func (b *buffer) reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.buf.Reset()
}

// The same without the mark, where nothing stands between the handler and the log but the pipeline.
func TestBR56_AnUnmarkedCommandIsNotLoggedEither(t *testing.T) {
	t.Parallel()
	out := new(buffer)
	core := zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.AddSync(out), zapcore.DebugLevel)
	reg := registry.New(registry.Config{Logger: zap.New(core)})
	registry.Handle(reg, func(_ context.Context, cmd visit) (bus.None, error) {
		switch cmd.Card {
		case card:
			return bus.None{}, fmt.Errorf("%+v", cmd)
		case card + "0":
			panic(cmd)
		}
		return bus.None{}, nil
	})
	b := build(t, reg)
	for _, n := range []string{card, card + "0", card + "00", ""} {
		func() {
			defer func() { _ = recover() }()
			_, _ = bus.Send(t.Context(), b, visit{Card: n})
			_ = bus.Check(t.Context(), b, visit{Card: n})
		}()
	}
	keeps(t, "the log", out.String())
	if lines := strings.Count(out.String(), "\n"); lines != 7 {
		t.Errorf("%d lines, want 7:\n%s", lines, out)
	}
}

type visit struct {
	Card string    `json:"card" validate:"required,max=17"`
	At   time.Time `json:"at"`
}

func (visit) CommandName() bus.Name[bus.None] { return "shop.visit" }

// What of an error's text is let through is the application's to say, one error at a time.
func TestLogErrorTextLetsThroughWhatItSays(t *testing.T) {
	t.Parallel()
	s := open(t, memstore.New(), func(cfg *registry.Config) {
		cfg.LogErrorText = func(err error) string {
			if coded, ok := errors.AsType[*codedError](err); ok {
				return coded.text
			}
			return ""
		}
		cfg.LogFields = func(ctx context.Context) []zap.Field {
			return []zap.Field{zap.String("trace_id", "trace-of-"+requestctx.From(ctx).ID())}
		}
	})
	s.handle = fail(errDeclined)
	_ = s.attempt(t, "attempt-1", theKey, s.pay())
	s.handle = fail(errBoom)
	_ = s.attempt(t, "attempt-2", theKey, s.pay())
	lines := s.logs.All()
	if len(lines) != 2 {
		t.Fatalf("%d lines", len(lines))
	}
	for i, want := range []map[string]any{
		{"error": errDeclined.text, "trace_id": "trace-of-attempt-1"},
		{"error": nil, "trace_id": "trace-of-attempt-2"},
	} {
		fields := lines[i].ContextMap()
		for name, value := range want {
			if fields[name] != value {
				t.Errorf("line %d: %s is %v, want %v", i, name, fields[name], value)
			}
		}
	}
}
