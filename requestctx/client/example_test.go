package client_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"time"

	"github.com/tekil-go/tekil/requestctx/client"
)

// flaky is a server that does the work of the first request and loses its answer. What it sees as the same request, by its key, it
// answers again; see package httpedge for a real one.
func flaky() *httptest.Server {
	orders, lost := map[string]int{}, false
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		key := r.Header.Get("Idempotency-Key")
		_, replayed := orders[key]
		if !replayed {
			orders[key] = len(orders) + 1
		}
		if !lost {
			lost = true
			cut(w)
			return
		}
		w.Header().Set("Idempotency-Replayed", fmt.Sprint(replayed))
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, `{"order_id":"o-%d"}`, orders[key])
	}))
}

func Example() {
	server := flaky()
	defer server.Close()
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "intents")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	store, err := client.NewFiles(dir)
	if err != nil {
		panic(err)
	}
	c := &client.Client{
		Transport: &http.Transport{DisableKeepAlives: true},
		Observe: func(t client.Try) {
			fmt.Printf("%s %s: try %d, %s, status %d\n", t.Intent, t.Method, t.Number, t.Event, t.Status)
		},
	}

	intent, err := client.Begin(ctx, store, "checkout", client.Options{DraftID: "cart-77", ProducedBy: "till 3"})
	if err != nil {
		panic(err)
	}
	answer, err := client.Do[placed](ctx, c, intent, client.Call{URL: server.URL + "/orders", Command: order{"cart-77", 5}})
	var unknown *client.UnknownError
	switch {
	case errors.As(err, &unknown):
		fmt.Println("ask again later, with the same intent")
	case err != nil:
		panic(err)
	default:
		fmt.Println(answer.Result.OrderID, "replayed:", answer.Replayed)
	}
	// Output:
	// checkout POST: try 1, cut after sending, status 0
	// checkout POST: try 2, 2xx, status 201
	// o-1 replayed: true
}

func ExampleNew() {
	one, err := client.New("newsletter", client.Options{})
	if err != nil {
		panic(err)
	}
	other, err := client.New("newsletter", client.Options{})
	if err != nil {
		panic(err)
	}
	fmt.Println(one.Key() == other.Key())

	here, err := client.New("checkout", client.Options{DraftID: "cart-77"})
	if err != nil {
		panic(err)
	}
	elsewhere, err := client.New("checkout", client.Options{DraftID: "cart-77"})
	if err != nil {
		panic(err)
	}
	fmt.Println(here.Key() == elsewhere.Key(), here)
	// Output:
	// false
	// true checkout cart-77 (D_Mk…)
}

func ExampleBegin() {
	ctx, store := context.Background(), &memory{} // NewFiles and NewSQL outlive the program
	intent, err := client.Begin(ctx, store, "import of 3 March", client.Options{TTLHours: 48})
	if err != nil {
		panic(err)
	}
	fmt.Println(intent.Resumed())
	// The program is killed, and starts again.
	again, err := client.Begin(ctx, store, "import of 3 March", client.Options{TTLHours: 48})
	if err != nil {
		panic(err)
	}
	fmt.Println(again.Resumed(), again.Key() == intent.Key(), again.Expires().Sub(again.Record().CreatedAt))
	// Output:
	// false
	// true true 48h0m0s
}

func ExampleRenew() {
	ctx, store := context.Background(), &memory{}
	old, err := client.Begin(ctx, store, "checkout", client.Options{DraftID: "cart-77"})
	if err != nil {
		panic(err)
	}
	_, err = client.Renew(ctx, store, "checkout", client.Options{DraftID: "cart-77"})
	fmt.Println(err)
	fresh, err := client.Renew(ctx, store, "checkout", client.Options{DraftID: "cart-77", Generation: 2}) // a person has said so
	fmt.Println(fresh.Key() == old.Key(), err)
	// Output:
	// client: a renewed intent of a draft needs another Generation, or its key would be the old one
	// false <nil>
}

func ExampleIntent_For() {
	form, err := client.New("checkout", client.Options{DraftID: "cart-77"})
	if err != nil {
		panic(err)
	}
	fmt.Println(form.For("POST", "/orders", ""))
	fmt.Println(form.For("POST", "/payments", ""))
	fmt.Println(form.For("POST", "/payments", "tip"))
	// Output:
	// checkout cart-77 (FngN…)
	// checkout cart-77 (Iuc2…)
	// checkout cart-77 (xtsW…)
}

func ExampleDerive() {
	fmt.Println(client.Derive("draft/1", "checkout", "cart-77", "1"))
	// Output: D_MkF7XEETAmB4mFfInw0L29Ff9Hn-wVFxq_v7DfoIE
}

func ExampleDo() {
	server := flaky()
	defer server.Close()
	intent, err := client.New("checkout", client.Options{})
	if err != nil {
		panic(err)
	}
	c := &client.Client{Transport: &http.Transport{DisableKeepAlives: true}, MaxTries: 1}
	call := client.Call{URL: server.URL + "/orders", Command: order{"cart-77", 5}}
	_, err = client.Do[placed](context.Background(), c, intent, call)
	var unknown *client.UnknownError
	fmt.Println(errors.As(err, &unknown), unknown.Stop, errors.Is(err, io.EOF))
	answer, err := client.Do[placed](context.Background(), c, intent, call) // later, with the same intent
	fmt.Println(answer.Result.OrderID, answer.Status, answer.Replayed, err)
	// Output:
	// true the tries are used up true
	// o-1 201 true <nil>
}

func ExampleClient_RoundTrip() {
	server := flaky()
	defer server.Close()
	intent, err := client.New("checkout", client.Options{})
	if err != nil {
		panic(err)
	}
	mine := &http.Client{Transport: &client.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	for _, path := range []string{"/orders", "/payments"} { // each with a key of its own
		req, err := http.NewRequestWithContext(client.With(context.Background(), intent), "POST", server.URL+path, strings.NewReader("{}"))
		if err != nil {
			panic(err)
		}
		resp, err := mine.Do(req)
		if err != nil {
			panic(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		fmt.Println(string(body), resp.Header.Get("Idempotency-Replayed"), err)
	}
	// Output:
	// {"order_id":"o-1"} true <nil>
	// {"order_id":"o-2"} false <nil>
}

func ExampleWithLabel() {
	server := flaky()
	defer server.Close()
	form, err := client.New("checkout", client.Options{})
	if err != nil {
		panic(err)
	}
	mine := &http.Client{Transport: &client.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	for _, label := range []string{"goods", "tip", "goods"} {
		ctx := client.WithLabel(context.Background(), form, label)
		req, err := http.NewRequestWithContext(ctx, "POST", server.URL+"/payments", strings.NewReader("{}"))
		if err != nil {
			panic(err)
		}
		resp, err := mine.Do(req)
		if err != nil {
			panic(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		fmt.Println(label, string(body), err)
	}
	// Output:
	// goods {"order_id":"o-1"} <nil>
	// tip {"order_id":"o-2"} <nil>
	// goods {"order_id":"o-1"} <nil>
}

func ExampleIntent_Done() {
	ctx, store := context.Background(), &memory{}
	form, err := client.Begin(ctx, store, "checkout", client.Options{})
	if err != nil {
		panic(err)
	}
	// All calls under the form have succeeded.
	fmt.Println(form.Done(ctx), store.count())
	// Output: <nil> 0
}

func ExampleNewSQL() {
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		panic(err)
	}
	defer func() { _ = db.Close() }()
	db.SetMaxOpenConns(1) // of a database in memory
	ctx := context.Background()
	if _, err := db.ExecContext(ctx, client.SQLTable); err != nil {
		panic(err)
	}
	for range 2 {
		intent, err := client.Begin(ctx, client.NewSQL(db), "checkout", client.Options{DraftID: "cart-77"})
		fmt.Println(intent, intent.Resumed(), err)
	}
	// Output:
	// checkout cart-77 (D_Mk…) false <nil>
	// checkout cart-77 (D_Mk…) true <nil>
}

func ExamplePolicy() {
	for _, r := range client.Policy() {
		if r.Event == client.InProgress || r.Event == client.ServerFault {
			fmt.Printf("%s: with a key %v, PUT without %v, POST without %v\n", r.Event, r.Again[client.Keyed], r.Again[client.Idempotent], r.Again[client.Unkeyed])
		}
	}
	// Output:
	// 409 in progress: with a key true, PUT without false, POST without false
	// 500, other 5xx: with a key true, PUT without false, POST without false
}

func ExampleKindOf() {
	fmt.Println(client.KindOf("POST", true) == client.Keyed, client.KindOf("PUT", false) == client.Idempotent, client.KindOf("PATCH", false) == client.Unkeyed)
	// Output: true true true
}

func ExampleRetryAfter() {
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	fmt.Println(client.RetryAfter(http.Header{"Retry-After": {"120"}}, now))
	fmt.Println(client.RetryAfter(http.Header{"Retry-After": {"Wed, 04 Mar 2026 05:06:17 GMT"}}, now))
	// Output:
	// 2m0s
	// 10s
}
