package httpedge_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"strings"

	"go.uber.org/zap"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/memstore"
	"github.com/tekil-go/tekil/behaviors/validation"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/registry"
	"github.com/tekil-go/tekil/requestctx"
	"github.com/tekil-go/tekil/requestctx/httpedge"
)

// Book and Room are an application's.
type Book struct {
	Room   string `json:"room"   validate:"required"`
	Nights int    `json:"nights" validate:"gt=0"`
}

type Booked struct {
	Booking string `json:"booking"`
	Room    string `json:"room"`
}

func (Book) CommandName() bus.Name[Booked] { return "rooms.book" }
func (Book) Idempotent()                   {}

type Room struct{ Name string }

func (Room) QueryName() bus.Name[Booked] { return "rooms.find" }

// hotel builds a bus that books rooms. Room 13 is never to be had.
func hotel() (*bus.Bus, error) {
	store := memstore.New()
	reg := registry.New(registry.Config{Logger: zap.NewNop(), Store: store})
	registry.Handle(reg, func(ctx context.Context, c Book) (Booked, error) {
		if c.Room == "13" {
			return Booked{}, idempotency.Final(coded{"ROOM_TAKEN", "The room is taken."})
		}
		return Booked{Booking: "b-1", Room: c.Room}, store.Insert(ctx, c.Room)
	})
	registry.HandleQuery(reg, func(_ context.Context, q Room) (Booked, error) {
		return Booked{Booking: "b-1", Room: q.Name}, nil
	})
	return reg.Build()
}

func show(h http.Handler, method, path, body string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func Example() {
	b, err := hotel()
	if err != nil {
		panic(err)
	}
	e, err := httpedge.New(httpedge.Config{
		Principal: func(r *http.Request) (string, error) { // what the application's authentication found out
			user, _, _ := r.BasicAuth()
			return user, nil
		},
		Anonymous: true,
		Statuses:  map[string]int{"ROOM_TAKEN": http.StatusConflict},
	})
	if err != nil {
		panic(err)
	}
	book, err := httpedge.Command(e, b, "POST /bookings", httpedge.Options[Book, Booked]{
		Status:   http.StatusCreated,
		Location: func(r Booked) string { return "/bookings/" + r.Booking },
	})
	if err != nil {
		panic(err)
	}
	mux := http.NewServeMux()
	mux.Handle("POST /bookings", book)

	try := func(body string) {
		w := show(mux, "POST", "/bookings", body, "Idempotency-Key", "booking-0001")
		var answer struct{ Booking, Code, Retry string }
		if err := jsonInto(w, &answer); err != nil {
			panic(err)
		}
		fmt.Printf("%d %v replayed: %q\n", w.Code, answer, w.Header().Get("Idempotency-Replayed"))
	}
	try(`{"room":"12","nights":0}`) // refused: the key is not spent
	try(`{"room":"12","nights":2}`) // so the corrected form runs
	try(`{"room":"12","nights":2}`) // its answer was lost: the same one again
	try(`{"room":"12","nights":9}`) // other work under the same key
	// Output:
	// 400 { VALIDATION_FAILED same-key} replayed: ""
	// 201 {b-1  } replayed: "false"
	// 201 {b-1  } replayed: "true"
	// 409 { IDEMPOTENCY_KEY_CONFLICT none} replayed: "false"
}

func ExampleNew() {
	_, err := httpedge.New(httpedge.Config{Statuses: map[string]int{"ROOM_TAKEN": 200}})
	fmt.Println(err)
	// Output:
	// httpedge: Config.Principal is nil, so no caller would have a name and no key a scope; set it, or set Anonymous if all callers are meant to be anonymous
	// httpedge: Config.Statuses: ROOM_TAKEN has the status 200; an error's status is between 400 and 599
}

func ExampleCommand() {
	b, err := hotel()
	if err != nil {
		panic(err)
	}
	e, err := httpedge.New(httpedge.Config{Anonymous: true})
	if err != nil {
		panic(err)
	}
	book, err := httpedge.Command(e, b, "POST /rooms/{room}/bookings", httpedge.Options[Book, Booked]{
		Fill: func(r *http.Request, c *Book) error { c.Room = r.PathValue("room"); return nil },
		Body: func(req *requestctx.Request, r Booked) any {
			return map[string]any{"booked": r.Room, "first try": !req.Outcome().Replayed}
		},
	})
	if err != nil {
		panic(err)
	}
	for range 2 {
		w := show(book, "POST", "/rooms/12/bookings", `{"nights":2}`, "Idempotency-Key", "booking-0001")
		fmt.Print(w.Code, " ", w.Body)
	}
	// Output:
	// 200 {"booked":"12","first try":true}
	// 200 {"booked":"12","first try":false}
}

func ExampleCheck() {
	b, err := hotel()
	if err != nil {
		panic(err)
	}
	e, err := httpedge.New(httpedge.Config{Anonymous: true})
	if err != nil {
		panic(err)
	}
	check, err := httpedge.Check(e, b, "POST /bookings/test", httpedge.Options[Book, Booked]{})
	if err != nil {
		panic(err)
	}
	fmt.Println(show(check, "POST", "/bookings/test", `{"room":"12","nights":2}`).Code)
	fmt.Println(show(check, "POST", "/bookings/test", `{"room":"12","nights":0}`).Code)
	// Output:
	// 200
	// 400
}

func ExampleQuery() {
	b, err := hotel()
	if err != nil {
		panic(err)
	}
	e, err := httpedge.New(httpedge.Config{Anonymous: true})
	if err != nil {
		panic(err)
	}
	find, err := httpedge.Query(e, b, "GET /rooms/{name}", httpedge.QueryOptions[Room, Booked]{
		Parse: func(r *http.Request) (Room, error) { return Room{Name: r.PathValue("name")}, nil },
	})
	if err != nil {
		panic(err)
	}
	w := show(find, "GET", "/rooms/12", "")
	fmt.Print(w.Code, " ", w.Body)
	// Output: 200 {"booking":"b-1","room":"12"}
}

// Renovate is an application's long work.
type Renovate struct {
	Room string `json:"room" validate:"required"`
}

type Renovated struct {
	Room string `json:"room"`
}

func (Renovate) CommandName() bus.Name[Renovated] { return "rooms.renovate" }
func (Renovate) Idempotency() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased, Duplicate: idempotency.AnswerAccepted, Wait: -1} // -1: do not wait for it
}

func ExampleOperations() {
	store := memstore.New()
	staff := func(ctx context.Context, inv bus.Invocation) error { // whether this caller may do this
		if requestctx.From(ctx).Scope().Client != "staff" {
			return errors.New(inv.Name + " is for staff")
		}
		return nil
	}
	config := registry.Config{Logger: zap.NewNop(), Store: store, Permit: []bus.Guard{staff}}
	reg := registry.New(config)
	begun, ready := make(chan struct{}), make(chan struct{})
	registry.Handle(reg, func(_ context.Context, c Renovate) (Renovated, error) {
		close(begun)
		<-ready // it takes weeks
		return Renovated(c), nil
	})
	b, err := reg.Build()
	if err != nil {
		panic(err)
	}

	const route = "GET /operations/{id}"
	e, err := httpedge.New(httpedge.Config{
		Principal:  func(*http.Request) (string, error) { return "staff", nil },
		Operations: route, // for the Location of those that are told to look there
	})
	if err != nil {
		panic(err)
	}
	renovate, err := httpedge.Command(e, b, "POST /renovations", httpedge.Options[Renovate, Renovated]{})
	if err != nil {
		panic(err)
	}
	operations, err := httpedge.Operations(e, store, route, append(config.Admit, config.Permit...))
	if err != nil {
		panic(err)
	}
	mux := http.NewServeMux()
	mux.Handle("POST /renovations", renovate)
	mux.Handle(route, operations)

	request := func() *httptest.ResponseRecorder {
		return show(mux, "POST", "/renovations", `{"room":"12"}`, "Idempotency-Key", "renovation-12")
	}
	done := make(chan struct{})
	go func() { request(); close(done) }() // nobody waits for the answer
	<-begun
	again := request()
	fmt.Println(again.Code, "come again in", again.Header().Get("Retry-After"), "seconds")
	look := func() {
		w := show(mux, "GET", again.Header().Get("Location"), "")
		var op httpedge.Operation
		if err := jsonInto(w, &op); err != nil {
			panic(err)
		}
		fmt.Printf("%d %s %s %q\n", w.Code, op.Command, op.State, op.Result)
	}
	look()
	close(ready)
	<-done
	look()
	// Output:
	// 202 come again in 2 seconds
	// 200 rooms.renovate in_progress ""
	// 200 rooms.renovate completed "{\"room\":\"12\"}"
}

// Transfer says in its body whose it is.
type Transfer struct {
	Company string `json:"company" validate:"required"`
	Amount  int    `json:"amount"  validate:"gt=0"`
}

func (Transfer) CommandName() bus.Name[bus.None] { return "money.transfer" }
func (Transfer) Idempotent()                     {}

func ExampleOptions() {
	store := memstore.New()
	reg := registry.New(registry.Config{Logger: zap.NewNop(), Store: store})
	registry.Handle(reg, func(ctx context.Context, c Transfer) (bus.None, error) {
		return bus.None{}, store.Insert(ctx, requestctx.From(ctx).Scope().Tenant)
	})
	b, err := reg.Build()
	if err != nil {
		panic(err)
	}
	e, err := httpedge.New(httpedge.Config{
		Anonymous: true,
		Log:       slog.New(slog.DiscardHandler),
		Envelope: func(req *requestctx.Request, r httpedge.Reply) any {
			code := "OK"
			if r.Problem != nil {
				code = r.Problem.Code
			}
			return map[string]any{"code": code, "first_try": !req.Outcome().Replayed}
		},
	})
	if err != nil {
		panic(err)
	}
	options := httpedge.Options[Transfer, bus.None]{
		Tenant: func(_ *http.Request, c Transfer) (string, error) {
			return map[string]string{"north": "tenant-1", "south": "tenant-2"}[c.Company], nil // as a database would say
		},
	}
	transfer, err := httpedge.Command(e, b, "POST /transfers", options)
	if err != nil {
		panic(err)
	}
	options.Preview = func(_ context.Context, c Transfer) (any, error) {
		return map[string]int{"fee": c.Amount / 100}, nil
	}
	preview, err := httpedge.Check(e, b, "POST /transfers/preview", options)
	if err != nil {
		panic(err)
	}
	fmt.Println(show(preview, "POST", "/transfers/preview", `{"company":"north","amount":500}`).Code)
	for _, company := range []string{"north", "south", "north", "west"} { // the same key each time
		w := show(transfer, "POST", "/transfers", `{"company":"`+company+`","amount":500}`, "Idempotency-Key", "transfer-0001")
		fmt.Print(w.Code, " ", w.Body)
	}
	fmt.Println(store.Rows())
	// Output:
	// 200
	// 200 {"code":"OK","first_try":true}
	// 200 {"code":"OK","first_try":true}
	// 200 {"code":"OK","first_try":false}
	// 403 {"code":"TENANT_UNRESOLVED","first_try":true}
	// [tenant-1 tenant-2]
}

func ExampleJSON() {
	b, err := hotel()
	if err != nil {
		panic(err)
	}
	lines := httpedge.Codec{ // an application's own format: "12 2" for the room and the nights
		MediaType: "application/x-lines",
		Decode: func(data []byte, v any) error {
			book, ok := v.(*Book)
			if !ok {
				return errors.New("not a booking")
			}
			_, err := fmt.Sscan(string(data), &book.Room, &book.Nights)
			return err
		},
		Encode: func(v any) ([]byte, error) { return fmt.Appendf(nil, "%v\n", v), nil },
	}
	e, err := httpedge.New(httpedge.Config{Anonymous: true, Codecs: []httpedge.Codec{httpedge.JSON(), lines}})
	if err != nil {
		panic(err)
	}
	book, err := httpedge.Command(e, b, "POST /bookings", httpedge.Options[Book, Booked]{})
	if err != nil {
		panic(err)
	}
	const key = "booking-0001"
	first := show(book, "POST", "/bookings", `{"room":"12","nights":2}`, "Idempotency-Key", key)
	fmt.Print(first.Header().Get("Idempotency-Replayed"), " ", first.Body)
	again := show(book, "POST", "/bookings", "12 2", "Idempotency-Key", key, "Content-Type", "application/x-lines")
	fmt.Print(again.Header().Get("Idempotency-Replayed"), " ", again.Body)
	// Output:
	// false {"booking":"b-1","room":"12"}
	// true {b-1 12}
}

func ExampleCORS() {
	cors, err := httpedge.CORS(httpedge.CORSConfig{Origins: []string{"https://shop.example.com"}})
	if err != nil {
		panic(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /bookings", func(http.ResponseWriter, *http.Request) {})
	h := cors(mux) // round the router, which has no route for OPTIONS
	w := show(h, "OPTIONS", "/bookings", "", "Origin", "https://shop.example.com",
		"Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "content-type,idempotency-key")
	fmt.Println(w.Code, w.Header().Get("Access-Control-Allow-Origin"), w.Header().Get("Access-Control-Allow-Headers"))

	_, err = httpedge.CORS(httpedge.CORSConfig{Origins: []string{"*"}, Credentials: true})
	fmt.Println(err)
	// Output:
	// 204 https://shop.example.com content-type,idempotency-key
	// httpedge: CORSConfig lets every origin call with credentials, so any page could act as its visitor; name the origins
}

func ExampleEdge_Middleware() {
	b, err := hotel()
	if err != nil {
		panic(err)
	}
	e, err := httpedge.New(httpedge.Config{Anonymous: true})
	if err != nil {
		panic(err)
	}
	form := e.Middleware("POST /book")(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		booked, err := bus.Send(r.Context(), b, Book{Room: r.FormValue("room"), Nights: 1})
		if err != nil {
			e.WriteProblem(w, r, err)
			return
		}
		e.SetHeaders(w, r)
		_, _ = fmt.Fprintln(w, "booked:", booked.Room)
	}))
	for range 2 {
		w := show(form, "POST", "/book?room=12", "", "Idempotency-Key", "booking-0001")
		fmt.Print(w.Header().Get("Idempotency-Replayed"), " ", w.Body)
	}
	// Output:
	// false booked: 12
	// true booked: 12
}

func ExampleEdge_WriteProblem() {
	e, err := httpedge.New(httpedge.Config{Anonymous: true, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		panic(err)
	}
	h := e.Middleware("GET /")(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e.WriteProblem(w, r, errors.New("dial tcp 10.0.0.7:5432: connection refused"))
	}))
	var p httpedge.Problem
	if err := jsonInto(show(h, "GET", "/", ""), &p); err != nil {
		panic(err)
	}
	fmt.Println(p.Status, p.Title, p.Code, p.Retry)
	fmt.Println(p.Detail)
	// Output:
	// 500 Internal Server Error INTERNAL none
	// The request could not be processed because of a fault in the service.
}

func ExampleEdge_SetHeaders() {
	e, err := httpedge.New(httpedge.Config{Anonymous: true})
	if err != nil {
		panic(err)
	}
	h := e.Middleware("POST /")(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		replay := requestctx.Outcome{State: requestctx.StateReplayed, Replayed: true, OriginalRequestID: "first"}
		requestctx.From(r.Context()).Report(replay) // as a dispatch does
		e.SetHeaders(w, r)
	}))
	header := show(h, "POST", "/", "", "Idempotency-Key", "booking-0001").Header()
	fmt.Println(header.Get("Idempotency-Key"), header.Get("Idempotency-Replayed"), header.Get("Idempotency-Original-Request-ID"))
	// Output: booking-0001 true first
}

func ExampleStatus() {
	fmt.Println(httpedge.Status(&idempotency.ConflictError{Command: "rooms.book"}, true))
	fmt.Println(httpedge.Status(errors.New("the database is away, all was rolled back"), true))
	fmt.Println(httpedge.Status(errors.New("the mail may have been sent"), false))
	// Output:
	// 409 none
	// 500 same-key
	// 500 none
}

// Register is an application's command that takes a file.
type Register struct {
	Guest    string          `json:"guest" validate:"required"`
	Passport requestctx.File `json:"-"     validate:"required"`
}

type Registered struct {
	Guest string `json:"guest"`
	Bytes int    `json:"bytes"`
}

func (Register) CommandName() bus.Name[Registered] { return "guests.register" }
func (Register) Idempotent()                       {}

func ExampleOptions_file() {
	store := memstore.New()
	reg := registry.New(registry.Config{Logger: zap.NewNop(), Store: store})
	registry.Handle(reg, func(ctx context.Context, c Register) (Registered, error) {
		in, err := c.Passport.Open() // to be read before the handler returns
		if err != nil {
			return Registered{}, err
		}
		defer func() { _ = in.Close() }()
		data, err := io.ReadAll(in)
		return Registered{c.Guest, len(data)}, errors.Join(err, store.Insert(ctx, c.Guest))
	})
	b, err := reg.Build()
	if err != nil {
		panic(err)
	}
	e, err := httpedge.New(httpedge.Config{Anonymous: true})
	if err != nil {
		panic(err)
	}
	register, err := httpedge.Command(e, b, "POST /guests", httpedge.Options[Register, Registered]{
		File: func(c *Register, field string, f requestctx.File) error {
			switch {
			case field != "passport":
				return validation.Field(field, "unknown", "is not a file of this form")
			case !c.Passport.IsZero():
				return validation.Field(field, "one", "may be there only once")
			}
			c.Passport = f
			return nil
		},
		FileLimit: 10 << 20,
	})
	if err != nil {
		panic(err)
	}

	try := func(name, content string) {
		var body strings.Builder
		form := multipart.NewWriter(&body)
		err := form.WriteField("command", `{"guest":"Jane"}`) // first
		if err != nil {
			panic(err)
		}
		file, err := form.CreateFormFile("passport", name)
		if err != nil {
			panic(err)
		}
		if _, err = io.WriteString(file, content); err != nil {
			panic(err)
		}
		if err = form.Close(); err != nil {
			panic(err)
		}
		w := show(register, "POST", "/guests", body.String(), "Content-Type", form.FormDataContentType(), "Idempotency-Key", "guest-0001")
		var answer struct {
			Bytes int
			Code  string
		}
		if err = jsonInto(w, &answer); err != nil {
			panic(err)
		}
		fmt.Printf("%d %v replayed: %q\n", w.Code, answer, w.Header().Get("Idempotency-Replayed"))
	}
	try("passport.pdf", "%PDF-1.7")
	try("copy.pdf", "%PDF-1.7") // the same file, whatever it is called
	try("passport.pdf", "%PDF-2.0")
	// Output:
	// 200 {8 } replayed: "false"
	// 200 {8 } replayed: "true"
	// 409 {0 IDEMPOTENCY_KEY_CONFLICT} replayed: "false"
}
