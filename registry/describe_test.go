package registry_test

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/memstore"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/registry"
)

// transfer has a policy in which nothing is left to its default.
type transfer struct{ Amount int64 }

func (transfer) CommandName() bus.Name[bus.None] { return "bank.transfer" }
func (transfer) Idempotency() idempotency.Policy {
	return idempotency.Policy{
		Retention: 720 * time.Hour, AfterExpiry: idempotency.Tombstone, Wait: -1, Deadline: 10 * time.Second, Version: 3,
		Isolation: idempotency.Serializable, KeyOptional: true, Strict: true, Results: idempotency.SealResult, ResultLimit: 1000,
	}
}

// remit is Leased, with nothing left to its default.
type remit struct{ Amount int64 }

func (remit) CommandName() bus.Name[placed] { return "bank.remit" }
func (remit) Idempotency() idempotency.Policy {
	return idempotency.Policy{
		Mode: idempotency.Leased, Lease: time.Minute, Takeover: idempotency.Reconcile, MaxAttempts: 3,
		Duplicate: idempotency.AnswerAccepted, RelaxedClaim: true, Results: idempotency.OmitResult,
	}
}

// tuned is Leased, and the deployment has something to say about it.
type tuned struct{ Amount int64 }

func (tuned) CommandName() bus.Name[placed] { return "bank.tuned" }
func (tuned) Idempotency() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased, Retention: 48 * time.Hour, Wait: time.Second, MaxAttempts: 3}
}

// environment changes all that a deployment may change, but the wait, which it sets to what it is.
func environment(p *idempotency.Policy) {
	p.Retention, p.ShortRetention, p.Wait, p.Deadline, p.KeyOptional = 2*time.Hour, true, time.Second, 5*time.Second, true
	p.Lease, p.MaxAttempts, p.RelaxedClaim, p.ResultLimit = 2*time.Minute, -1, true, -1
}

func remitted(context.Context, remit) (placed, bool, error) { return placed{}, false, nil }

// described is a registry with one command of each kind, registered in the order given.
func described(t *testing.T, cfg registry.Config, backwards bool) *registry.Registry {
	t.Helper()
	sealer, err := idempotency.NewSealer(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	cfg.Logger, cfg.Validate, cfg.Sealer = zap.NewNop(), rules(t, nil), sealer
	reg := registry.New(cfg)
	registrations := []func(){
		func() { registry.Handle(reg, serve[place, placed]) },
		func() { registry.Handle(reg, serve[note, bus.None]) },
		func() { registry.Handle(reg, serve[transfer, bus.None]) },
		func() { registry.Handle(reg, serve[remit, placed], registry.Reconcile(remitted)) },
		func() { registry.Handle(reg, serve[tuned, placed], registry.Tune[tuned, placed](environment)) },
		func() { registry.Handle(reg, serve[keeper, placed]) },
		func() { registry.Handle(reg, serve[typo, placed]) },
		func() { registry.HandleQuery(reg, serve[find, placed]) },
	}
	for i := range registrations {
		if backwards {
			i = len(registrations) - 1 - i
		}
		registrations[i]()
	}
	build(t, reg)
	return reg
}

func full() registry.Config {
	pass := func(context.Context, bus.Invocation) error { return nil }
	return registry.Config{
		Store: wary{memstore.New()}, RequireTenant: true, Admit: []bus.Guard{pass, pass}, Permit: []bus.Guard{pass},
		Around: []registry.Around{step(nil, "one"), step(nil, "two"), step(nil, "three")},
	}
}

// The files are what a review sees of a change. To accept one, delete the files, run this test once and read the difference.
func TestDescribeIsWhatTheFilesSay(t *testing.T) {
	t.Parallel()
	d := described(t, full(), false).Describe()
	for file, got := range map[string]string{"testdata/describe.txt": d.String(), "testdata/describe.json": string(d.JSON())} {
		want, err := os.ReadFile(file)
		if os.IsNotExist(err) {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
			t.Errorf("%s was not there and has been written; read it", file)
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s differs; got\n%s", file, got)
		}
	}
}

func TestDescribeIsTheSameFromBuildToBuild(t *testing.T) {
	t.Parallel()
	want := described(t, full(), false).Describe()
	for i := range 10 {
		got := described(t, full(), i%2 == 0).Describe()
		if got.String() != want.String() || string(got.JSON()) != string(want.JSON()) {
			t.Fatalf("build %d is described as\n%s\nand not as\n%s", i, got, want)
		}
	}
}

func TestDescribeAsJSONCanBeReadBack(t *testing.T) {
	t.Parallel()
	want := described(t, full(), false).Describe()
	var got registry.Description
	if err := json.Unmarshal(want.JSON(), &got); err != nil {
		t.Fatal(err)
	}
	if got.String() != want.String() {
		t.Errorf("read back as\n%s\nwant\n%s", got, want)
	}
}

func TestTuneIsGivenThePolicyOfTheTypeAndThenWhatTheOneBeforeHasLeft(t *testing.T) {
	t.Parallel()
	var seen []idempotency.Policy
	reg := registry.New(registry.Config{Logger: zap.NewNop(), Store: memstore.New(), Validate: rules(t, nil)})
	registry.Handle(reg, serve[tuned, placed],
		registry.Tune[tuned, placed](func(p *idempotency.Policy) { seen = append(seen, *p); p.Lease = time.Minute }),
		registry.Tune[tuned, placed](func(p *idempotency.Policy) { seen = append(seen, *p); p.Wait = -1 }))
	build(t, reg)
	first, second := tuned{}.Idempotency(), tuned{}.Idempotency()
	second.Lease = time.Minute
	if len(seen) != 2 || seen[0] != first || seen[1] != second {
		t.Errorf("the policies that Tune was given are %+v", seen)
	}
	i := reg.Describe().Commands[0].Idempotency
	equal(t, "tuned fields", i.Tuned, []string{"Wait", "Lease"})
	if i.Lease != "1m0s" || i.Duplicate != "in progress at once" || i.MaxAttempts != 3 {
		t.Errorf("described as %+v", i)
	}
}

func TestDescribeIsEmptyBeforeBuild(t *testing.T) {
	t.Parallel()
	reg := registry.New(registry.Config{Logger: zap.NewNop()})
	registry.Handle(reg, serve[typo, placed])
	if d := reg.Describe(); d.String() != "" || d.Store != "" || d.Commands != nil {
		t.Errorf("described as %v", d)
	}
	empty := registry.New(registry.Config{Logger: zap.NewNop()})
	build(t, empty)
	if got := string(empty.Describe().JSON()); got != "{\n  \"commands\": []\n}\n" {
		t.Errorf("a bus without commands is described as %s", got)
	}
}

// Brighter #4396: there, the self-check praised a configuration that never reached the pipeline. Here the description is made
// of what the pipeline was built of: take a part away, and it is gone from the text.
func TestBR26_TheDescriptionIsMadeOfTheObjectsReallyUsed(t *testing.T) {
	t.Parallel()
	stages := func(d registry.Description, name string) string {
		for _, c := range d.Commands {
			if c.Name == name {
				return strings.Join(c.Stages, " ")
			}
		}
		return "not described"
	}
	for name, c := range map[string]struct {
		change      func(*registry.Config)
		store       string
		place, note string
	}{
		"everything": {
			change: func(*registry.Config) {}, store: "a wary store",
			place: "logging admit(2) validation permit(1) idempotency around(3) handler", note: "logging admit(2) validation permit(1) around(3) handler",
		},
		"another store": {
			change: func(cfg *registry.Config) { cfg.Store = memstore.New() }, store: "memory (for tests only)",
			place: "logging admit(2) validation permit(1) idempotency around(3) handler", note: "logging admit(2) validation permit(1) around(3) handler",
		},
		"no guards": {
			change: func(cfg *registry.Config) { cfg.Admit, cfg.Permit = nil, nil }, store: "a wary store",
			place: "logging validation idempotency around(3) handler", note: "logging validation around(3) handler",
		},
		"no wrappers": {
			change: func(cfg *registry.Config) { cfg.Around = nil }, store: "a wary store",
			place: "logging admit(2) validation permit(1) idempotency handler", note: "logging admit(2) validation permit(1) handler",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := full()
			c.change(&cfg)
			d := described(t, cfg, false).Describe()
			if d.Store != c.store || stages(d, "shop.place") != c.place || stages(d, "shop.note") != c.note || stages(d, "shop.find") != c.note {
				t.Errorf("described as\n%s", d)
			}
		})
	}
}

// The same question asked of the objects: a bus without any edge, a store of its own, the same command twice.
func TestBR26_WhatIsDescribedAsProtectedIsProtectedByThatStore(t *testing.T) {
	t.Parallel()
	mine, other := memstore.New(), memstore.New()
	s := open(t, mine)
	for _, id := range []string{"delivery-1", "delivery-2"} {
		s.must(t, id, theKey, s.pay())
	}
	d := s.reg.Describe()
	if d.Store != "memory (for tests only)" || !strings.Contains(d.String(), "idempotent: atomic, key required") {
		t.Errorf("described as\n%s", d)
	}
	if n := s.orders.Load(); n != 1 {
		t.Errorf("%d orders", n)
	}
	holds(t, mine, 1, "cart-1 4990")
	holds(t, other, 0)
}
