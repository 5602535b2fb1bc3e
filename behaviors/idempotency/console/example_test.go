package console_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"go.uber.org/zap"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/console"
	"github.com/tekil-go/tekil/behaviors/idempotency/memstore"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/registry"
	"github.com/tekil-go/tekil/requestctx"
)

type place struct {
	Cart string `json:"cart" validate:"required"`
}

func (place) CommandName() bus.Name[string] { return "orders.place" }
func (place) Idempotent()                   {}

// staff stands for the application's own log-in.
func staff(r *http.Request) (string, error) {
	name, password, _ := r.BasicAuth()
	if name != "ayse" || password != "secret" {
		return "", errors.New("nobody of ours")
	}
	return name, nil
}

// A service with an order in it, and its console under /ops/records/.
func ExampleNew() {
	store, logger := memstore.New(), zap.NewNop()
	reg := registry.New(registry.Config{Logger: logger, Store: store})
	registry.Handle(reg, func(ctx context.Context, p place) (string, error) {
		requestctx.From(ctx).SetExternalRef("auth-1")
		return "order-1", store.Insert(ctx, p.Cart)
	})
	b, err := reg.Build()
	if err != nil {
		fmt.Println(err)
		return
	}
	key, _ := requestctx.ParseKey("8e03978e-40d5-43e8-bc93-6894a57f9324")
	ctx, _ := requestctx.New(context.Background(), requestctx.Values{ID: "req-1", Key: key, Scope: requestctx.Scope{Client: "shop"}})
	if _, err := bus.Send(ctx, b, place{"cart-77"}); err != nil {
		fmt.Println(err)
		return
	}

	admin, err := idempotency.NewAdmin(idempotency.AdminConfig{Store: store, Logger: logger})
	if err != nil {
		fmt.Println(err)
		return
	}
	records, err := console.New(console.Config{Admin: admin, Who: staff, Pipeline: reg.Describe()})
	if err != nil {
		fmt.Println(err)
		return
	}
	mux := http.NewServeMux()
	mux.Handle("/ops/records/", http.StripPrefix("/ops/records", records))

	// What a script does; a person opens the page.
	server := httptest.NewServer(mux)
	defer server.Close()
	for _, password := range []string{"wrong", "secret"} {
		r, _ := http.NewRequest("POST", server.URL+"/ops/records/search", strings.NewReader(`{"q": "auth-1"}`))
		r.Header.Set("Content-Type", "application/json")
		r.SetBasicAuth("ayse", password)
		answer, err := server.Client().Do(r)
		if err != nil {
			fmt.Println(err)
			return
		}
		body, _ := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		for _, line := range strings.Split(string(body), "\n") {
			switch name, value, _ := strings.Cut(strings.TrimSpace(line), ": "); name {
			case `"error"`, `"summary"`, `"key_masked"`, `"state"`:
				fmt.Println(answer.StatusCode, name, value)
			}
		}
	}
	// Output:
	// 403 "error" "You may not use this console, or you are not logged in.",
	// 200 "summary" "1 record: 1 done.",
	// 200 "key_masked" "8e03…",
	// 200 "state" "completed",
}
