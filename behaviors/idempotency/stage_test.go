package idempotency_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/memstore"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

// stage makes the stage of the command C and gives what Build would report.
func stage[C bus.Command[R], R any](t *testing.T, cfg idempotency.Config) (idempotency.Plan, error) {
	t.Helper()
	engine, err := idempotency.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	_, plan, err := idempotency.Stage(engine, func(context.Context, C) (R, error) { return *new(R), nil })
	return plan, err
}

// wantProblem demands a problem that says all of the words.
func wantProblem(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("it is accepted")
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("the problem is %q and does not say %q", err, w)
		}
	}
}

// named is the name of the commands in this file.
type named struct{}

func (named) CommandName() bus.Name[bus.None] { return "test.named" }

type (
	marked        struct{ named }
	withPolicy    struct{ named }
	unmarked      struct{ named }
	promoted      struct{ marked }
	pointerMark   struct{ named }
	pointerPolicy struct{ named }
	wrongResult   struct{ named }
	wrongArgument struct{ named }
	wrongPolicy   struct{ named }
	both          struct{ named }
	typo1         struct{ named }
	typo2         struct{ named }
	typo3         struct{ named }
	typo4         struct{ named }
	notTypo       struct{ named }
	markedTypo    struct{ named }
)

func (marked) Idempotent()                             {}
func (withPolicy) Idempotency() idempotency.Policy     { return idempotency.Policy{Version: 3} }
func (*pointerMark) Idempotent()                       {}
func (*pointerPolicy) Idempotency() idempotency.Policy { return idempotency.Policy{} }
func (wrongResult) Idempotent() bool                   { return true }
func (wrongArgument) Idempotent(context.Context)       {}
func (wrongPolicy) Idempotency() *idempotency.Policy   { return nil }
func (both) Idempotent()                               {}
func (both) Idempotency() idempotency.Policy           { return idempotency.Policy{Retention: 24 * time.Hour} }
func (typo1) Idempotant()                              {}
func (typo2) IdemPotent()                              {}
func (*typo3) Idempotence() idempotency.Policy         { return idempotency.Policy{} }
func (typo4) IsIdempotent() bool                       { return true }
func (notTypo) Important()                             {}
func (notTypo) Implement()                             {}
func (markedTypo) Idempotent()                         {}
func (markedTypo) Idempotant()                         {}

func TestMarkIsAMethodOnTheValue_pipe4(t *testing.T) {
	t.Parallel()
	cfg := idempotency.Config{Store: memstore.New()}
	for name, plan := range map[string]func() (idempotency.Plan, error){
		"marked":      func() (idempotency.Plan, error) { return stage[marked](t, cfg) },
		"with policy": func() (idempotency.Plan, error) { return stage[withPolicy](t, cfg) },
		"promoted":    func() (idempotency.Plan, error) { return stage[promoted](t, cfg) },
		"both":        func() (idempotency.Plan, error) { return stage[both](t, cfg) },
		"marked typo": func() (idempotency.Plan, error) { return stage[markedTypo](t, cfg) },
	} {
		p, err := plan()
		if err != nil || !p.Marked || p.Warnings != nil || p.Policy.Retention == 0 {
			t.Errorf("%s: %+v, %v", name, p, err)
		}
	}
	if p, err := stage[withPolicy](t, cfg); err != nil || p.Policy.Version != 3 || p.Policy.Deadline != time.Minute {
		t.Errorf("the policy is %+v, %v", p.Policy, err)
	}
	p, err := stage[unmarked](t, idempotency.Config{})
	if err != nil || p.Marked || p.Policy != (idempotency.Policy{}) || p.Warnings != nil {
		t.Errorf("a command without the mark: %+v, %v", p, err)
	}
	if !idempotency.IsMarked[marked]() || !idempotency.IsMarked[withPolicy]() || !idempotency.IsMarked[pointerMark]() || !idempotency.IsMarked[pointerPolicy]() ||
		idempotency.IsMarked[unmarked]() || idempotency.IsMarked[typo1]() {
		t.Error("IsMarked is wrong about a command")
	}
}

func TestMarkOnThePointerOnlyIsRefused(t *testing.T) {
	t.Parallel()
	cfg := idempotency.Config{Store: memstore.New()}
	_, err := stage[pointerMark](t, cfg)
	wantProblem(t, err, "Idempotent", "pointer receiver", "value receiver")
	_, err = stage[pointerPolicy](t, cfg)
	wantProblem(t, err, "Idempotency", "pointer receiver", "value receiver")
}

func TestMarkWithAnotherSignatureIsRefused(t *testing.T) {
	t.Parallel()
	cfg := idempotency.Config{Store: memstore.New()}
	_, err := stage[wrongResult](t, cfg)
	wantProblem(t, err, "Idempotent", "another signature")
	_, err = stage[wrongArgument](t, cfg)
	wantProblem(t, err, "Idempotent", "another signature")
	_, err = stage[wrongPolicy](t, cfg)
	wantProblem(t, err, "Idempotency", "another signature")
}

func TestMethodThatLooksLikeTheMarkIsWarnedOf(t *testing.T) {
	t.Parallel()
	for name, plan := range map[string]func() (idempotency.Plan, error){
		"Idempotant":   func() (idempotency.Plan, error) { return stage[typo1](t, idempotency.Config{}) },
		"IdemPotent":   func() (idempotency.Plan, error) { return stage[typo2](t, idempotency.Config{}) },
		"Idempotence":  func() (idempotency.Plan, error) { return stage[typo3](t, idempotency.Config{}) },
		"IsIdempotent": func() (idempotency.Plan, error) { return stage[typo4](t, idempotency.Config{}) },
	} {
		p, err := plan()
		if err != nil || p.Marked || len(p.Warnings) != 1 || !strings.Contains(p.Warnings[0], name) || !strings.Contains(p.Warnings[0], "var _ idempotency.Marker = typo") {
			t.Errorf("%s: %+v, %v", name, p, err)
		}
	}
	if p, err := stage[notTypo](t, idempotency.Config{}); err != nil || p.Warnings != nil {
		t.Errorf("other methods: %+v, %v", p, err)
	}
}

// onPointer is a command that somebody registers by its pointer.
type onPointer struct{ Name string }

func (onPointer) CommandName() bus.Name[bus.None] { return "test.pointer" }
func (p onPointer) Idempotency() idempotency.Policy {
	return idempotency.Policy{Version: len(p.Name)} // reads the value: on a nil pointer that panics
}

type list []string

func (list) CommandName() bus.Name[bus.None] { return "test.list" }
func (list) Idempotent()                     {}

type anyCommand interface {
	CommandName() bus.Name[bus.None]
	Idempotent()
}

func TestBR55_MarkedCommandThatIsNoStructIsRefusedAndDoesNotPanic(t *testing.T) {
	t.Parallel()
	cfg := idempotency.Config{Store: memstore.New()}
	_, err := stage[*onPointer](t, cfg)
	wantProblem(t, err, "kind is ptr", "plain struct")
	_, err = stage[list](t, cfg)
	wantProblem(t, err, "kind is slice", "plain struct")
	_, err = stage[anyCommand](t, cfg)
	wantProblem(t, err, "kind is interface", "plain struct")
}

type sealed struct {
	named
	Pin string `json:"pin" idempotency:"secret"`
}

func (sealed) Idempotent() {}

func TestStageReportsEveryProblemAtOnce_X17(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	_, err := stage[marked](t, idempotency.Config{})
	wantProblem(t, err, "no store is set")
	_, err = stage[sealed](t, idempotency.Config{Store: store})
	wantProblem(t, err, "secret", "32 bytes")
	if _, err := stage[sealed](t, idempotency.Config{Store: store, Secrets: []idempotency.Secret{{Key: make([]byte, 32)}}}); err != nil {
		t.Error(err)
	}
	plan, err := stage[hopeless](t, idempotency.Config{})
	wantProblem(t, err, "no store is set", "Version is -1", "is a chan", "callback")
	if !plan.Marked {
		t.Error("the plan of a command with problems does not say that it is marked")
	}
}

// hopeless has a problem of every kind.
type hopeless struct {
	Callback func() `json:"callback"`
}

func (hopeless) CommandName() bus.Name[chan int] { return "test.hopeless" }
func (hopeless) Idempotency() idempotency.Policy { return idempotency.Policy{Version: -1} }

func TestF18_SecretFieldCountsAndTheSecretDoes(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	handle := func(context.Context, sealed) (bus.None, error) { return bus.None{}, nil }
	secret := []byte("0123456789abcdef0123456789abcdef")
	send := serve(t, idempotency.Config{Store: store, Secrets: []idempotency.Secret{{Key: secret}}}, handle)
	v := keyed(t, "key-00000001")
	if _, _, err := call(t.Context(), send, v, sealed{Pin: "1234"}); err != nil {
		t.Fatal(err)
	}
	if _, out, err := call(t.Context(), send, v, sealed{Pin: "1234"}); err != nil || !out.Replayed {
		t.Error(out, err)
	}
	if _, _, err := call(t.Context(), send, v, sealed{Pin: "4321"}); bus.CodeOf(err) != "IDEMPOTENCY_KEY_CONFLICT" {
		t.Error(err)
	}
	other := serve(t, idempotency.Config{Store: store, Secrets: []idempotency.Secret{{Key: []byte(strings.Repeat("another!", 4))}}}, handle)
	if _, _, err := call(t.Context(), other, v, sealed{Pin: "1234"}); bus.CodeOf(err) != "IDEMPOTENCY_KEY_CONFLICT" {
		t.Error(err)
	}
}

func TestAScopeThatNoDatabaseCanStoreIsRefusedBeforeTheStoreIsAsked(t *testing.T) {
	t.Parallel()
	for _, v := range []requestctx.Values{
		{Scope: requestctx.Scope{Client: "a\x00b"}},
		{Scope: requestctx.Scope{Client: "acme", Tenant: "\xff"}},
		{Scope: requestctx.Scope{Client: "acme"}, Source: "POST /\x00"},
	} {
		store := memstore.New()
		engine, err := idempotency.New(idempotency.Config{Store: store})
		if err != nil {
			t.Fatal(err)
		}
		claimed, _, err := idempotency.Stage(engine, func(context.Context, plainCommand) (string, error) { return "", nil })
		if err != nil {
			t.Fatal(err)
		}
		b, err := bus.New(bus.Serve[plainCommand](bus.Log(bus.Validate(claimed, bus.Invocation{}, nil, nil), bus.Invocation{}, nil, nil)))
		if err != nil {
			t.Fatal(err)
		}
		v.Key, err = requestctx.ParseKey("scope-key-1")
		if err != nil {
			t.Fatal(err)
		}
		ctx, _ := requestctx.New(t.Context(), v)
		var scope *idempotency.ScopeError
		if _, err := bus.Send(ctx, b, plainCommand{}); !errors.As(err, &scope) || !strings.Contains(err.Error(), "can be stored") {
			t.Errorf("%+v: got %v", v.Scope, err)
		}
		if n := len(store.Records()); n != 0 {
			t.Errorf("%+v: %d records", v.Scope, n)
		}
	}
}

type plainCommand struct{}

func (plainCommand) CommandName() bus.Name[string] { return "test.plain" }
func (plainCommand) Idempotent()                   {}
