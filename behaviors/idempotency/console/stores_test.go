package console_test

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"
	_ "modernc.org/sqlite"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/console"
	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore"
	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore/pgtest"
	"github.com/tekil-go/tekil/behaviors/idempotency/sqlitestore"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/registry"
	"github.com/tekil-go/tekil/requestctx"
)

// pay asks a provider, which does not always answer.
type pay struct {
	Card string `json:"card" validate:"required"`
	How  string `json:"how"`
}

func (pay) CommandName() bus.Name[string] { return "billing.pay" }
func (pay) Idempotency() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased}
}

// declined is how a payment is refused.
type declined struct{ card string }

func (declined) Error() string      { return "declined for grace@example.com" }
func (declined) Code() string       { return "PAYMENT_DECLINED" }
func (d declined) RefusalData() any { return map[string]string{"card": d.card} }

func TestOnDatabasesThatCommandsHaveWrittenTo(t *testing.T) {
	t.Parallel()
	t.Run("PostgreSQL", func(t *testing.T) {
		t.Parallel()
		pool := pgtest.Pool(t)
		if err := pgstore.Migrate(t.Context(), pool); err != nil {
			t.Fatal(err)
		}
		onDatabase(t, pgstore.New(pool), func(query string) error { _, err := pool.Exec(t.Context(), query); return err },
			`UPDATE idempotency_records SET lease_until = clock_timestamp() - interval '1 minute' WHERE key = 'key-00000003'`)
	})
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		db, err := sql.Open("sqlite", "file:"+filepath.ToSlash(filepath.Join(t.TempDir(), "shop.db")))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() })
		if err := sqlitestore.Migrate(t.Context(), db); err != nil {
			t.Fatal(err)
		}
		onDatabase(t, sqlitestore.New(db), func(query string) error { _, err := db.ExecContext(t.Context(), query); return err },
			`UPDATE idempotency_records SET lease_until = lease_until - 3600000 WHERE key = 'key-00000003'`)
	})
}

// payTwice is tried no more than twice.
type payTwice struct {
	Card string `json:"card" validate:"required"`
}

func (payTwice) CommandName() bus.Name[string] { return "billing.twice" }
func (payTwice) Idempotency() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased, MaxAttempts: 2}
}

func TestARequestThatWasRefusedForTooManyAttemptsIsNotSaidToHaveBeenOne_L19(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	reg := registry.New(registry.Config{Logger: zap.NewNop(), Store: d.store})
	registry.Handle(reg, func(context.Context, payTwice) (string, error) { return "", errors.New("the provider is away") })
	b, err := reg.Build()
	if err != nil {
		t.Fatal(err)
	}
	k, _ := requestctx.ParseKey("key-00000001")
	for _, request := range []string{"req-1", "req-2", "req-refused"} {
		ctx, _ := requestctx.New(t.Context(), requestctx.Values{ID: request, Key: k, Scope: requestctx.Scope{Client: "shop"}})
		_, err = bus.Send(ctx, b, payTwice{"4111"})
	}
	if exhausted := (*idempotency.AttemptsError)(nil); !errors.As(err, &exhausted) || exhausted.Attempts != 2 {
		t.Fatal(err)
	}
	got := decode[found](t, d.ask(t, "GET", "/stuck", "", "json"), 200)
	if len(got.Records) != 1 || got.Records[0].RequestID != "req-refused" || strings.Contains(got.Records[0].Verdict, "req-") ||
		!strings.HasPrefix(got.Records[0].Verdict, "Nothing of it is committed in this database. What earlier attempts asked of other systems may have been done there") {
		t.Fatalf("%+v", got)
	}
	wantPage(t, d.ask(t, "GET", "/stuck", ""), 200, "<li>at least 2 attempts</li>", "<dt>Last request</dt><dd><code>req-refused</code></dd>")
}

// onDatabase makes one record of each kind by commands, and looks at all that a console does. The query ends the lease of the third one.
func onDatabase(t *testing.T, store idempotency.Store, exec func(query string) error, over string) {
	const card = "4111111111111111"
	reg := registry.New(registry.Config{Logger: zap.NewNop(), Store: store})
	registry.Handle(reg, func(ctx context.Context, p pay) (string, error) {
		requestctx.From(ctx).SetExternalRef("auth-" + p.How)
		return "receipt for " + p.Card, map[string]error{
			"refused": idempotency.Final(declined{p.Card}), "unknown": idempotency.Unknown(errors.New("it timed out")), "live": idempotency.Unknown(errors.New("it timed out")),
			"failed": errors.New("the provider is away"),
		}[p.How]
	})
	b, err := reg.Build()
	if err != nil {
		t.Fatal(err)
	}
	d := newDesk(t)
	admin, err := idempotency.NewAdmin(idempotency.AdminConfig{Store: store, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	if d.Handler, err = console.New(console.Config{Admin: admin, Who: ayse, Pipeline: reg.Describe(), Log: slog.New(slog.NewTextHandler(d.own, nil))}); err != nil {
		t.Fatal(err)
	}
	send := func(key, how string) error {
		k, err := requestctx.ParseKey(key)
		if err != nil {
			t.Fatal(err)
		}
		ctx, _ := requestctx.New(t.Context(), requestctx.Values{
			ID: "req-" + how, Key: k, DraftID: "order-4711", Source: "POST /pay", Scope: requestctx.Scope{Client: "shop", Tenant: "acme"},
		})
		_, err = bus.Send(ctx, b, pay{card, how})
		return err
	}
	verdicts := map[string]string{"done": "Done once, by request req-done at ", "refused": "Refused for good with PAYMENT_DECLINED, by request req-refused", "unknown": "Nobody knows",
		"live": "Most likely being done now", "failed": "Nothing of it is committed in this database."}
	keys := map[string]string{"done": "key-00000001", "refused": "key-00000002", "unknown": "key-00000003", "live": "key-00000004", "failed": "key-00000005"}
	for how, key := range keys {
		if err := send(key, how); (err == nil) != (how == "done") {
			t.Fatal(how, err)
		}
	}
	if err := exec(over); err != nil {
		t.Fatal(err)
	}

	var said strings.Builder
	if got := d.search(t, "q", "order-4711"); got.Summary != "5 records: 1 done, 1 refused, 1 in progress, 1 stuck, 1 failed." {
		t.Errorf("%+v", got)
	}
	for how, key := range keys {
		id := idempotency.Scope{Tenant: "acme", Client: "shop", Operation: "POST /pay billing.pay", Key: key}.ID()
		for text, kind := range map[string]string{key: "key", "req-" + how: "request_id", id.Operation(): "operation_id", uuid(id): "id"} {
			got := d.search(t, "q", text, "tenant", "acme", "client", "shop", "command", "POST /pay billing.pay")
			if len(got.Records) != 1 || got.Records[0].ID != uuid(id) || got.Records[0].FoundBy[0] != kind || !strings.HasPrefix(got.Records[0].Verdict, verdicts[how]) {
				t.Errorf("%s by %s: %+v", how, kind, got)
			}
		}
		w := d.ask(t, "GET", recordPath(id), "")
		wantPage(t, w, 200, verdicts[how])
		said.WriteString(w.Body.String() + d.ask(t, "GET", recordPath(id), "", "json").Body.String())
	}
	if got := d.search(t, "q", "auth-done"); len(got.Records) != 1 || got.Records[0].FoundBy[0] != "external_ref" {
		t.Errorf("%+v", got)
	}
	if got := d.search(t, "q", "nothing ' \" % _ \\ at all"); len(got.Records) != 0 {
		t.Errorf("%+v", got)
	}
	said.WriteString(d.own.String())
	for _, secret := range []string{card, "receipt", "grace", "key-0000"} {
		if strings.Contains(said.String(), secret) {
			t.Errorf("%q is said", secret)
		}
	}
	wantPage(t, d.ask(t, "GET", "/", ""), 200, "<b>1 stuck.</b>", "<b>1 failed.</b>", "billing.pay")
	wantPage(t, d.ask(t, "GET", "/pipeline", ""), 200, "command billing.pay (console_test.pay -&gt; string)")
	if got := decode[map[string]any](t, d.ask(t, "GET", "/pipeline", "", "json"), 200); got["store"] == "" || len(got["commands"].([]any)) != 1 {
		t.Errorf("%v", got)
	}

	stuck := decode[found](t, d.ask(t, "GET", "/stuck", "", "json"), 200)
	listed := map[string]record{}
	for _, r := range stuck.Records {
		listed[r.RequestID] = r
	}
	unknown := listed["req-unknown"]
	if len(stuck.Records) != 2 || !unknown.Stuck || listed["req-failed"].State != "failed" {
		t.Fatalf("%+v", stuck)
	}
	path, body := "/records/"+unknown.OperationID+"/release", form("reason", "ticket 4711", "seen", unknown.AttemptID)
	wantPage(t, d.follow(t, d.ask(t, "POST", path, body), path), 200, "Released.")
	wantPage(t, d.ask(t, "POST", path, body), 409, "has changed since it was read")
	if err := send("key-00000003", "unknown"); err == nil { // it runs again, and is not refused
		t.Error("it did not run")
	}
	wantPage(t, d.ask(t, "GET", "/stuck", ""), 200, "1 record: 1 failed.")
}
