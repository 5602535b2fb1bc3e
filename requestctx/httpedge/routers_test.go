package httpedge_test

import (
	"net/http"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/labstack/echo/v4"

	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx/httpedge"
)

// handler is Command for a route that is mounted elsewhere.
func handler[C bus.Command[R], R any](g *rig, pattern string, o httpedge.Options[C, R]) http.Handler {
	g.t.Helper()
	h, err := httpedge.Command(g.edge, g.bus, pattern, o)
	if err != nil {
		g.t.Fatal(err)
	}
	return h
}

func TestOneHandlerFitsEveryRouter(t *testing.T) {
	t.Parallel()
	find := func(g *rig, pattern string) http.Handler {
		h, err := httpedge.Query(g.edge, g.bus, pattern, httpedge.QueryOptions[find, placed]{
			Parse: func(r *http.Request) (find, error) { return find{r.PathValue("id")}, nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	routers := map[string]func(g *rig) http.Handler{
		"net/http": func(g *rig) http.Handler {
			mux := http.NewServeMux()
			mux.Handle("POST /v1/orders", handler(g, "POST /v1/orders", created))
			mux.Handle("POST /v1/orders/{id}/cancel", handler(g, "POST /v1/orders/{id}/cancel", cancelled))
			mux.Handle("GET /v1/orders/{id}", find(g, "GET /v1/orders/{id}"))
			return mux
		},
		"chi": func(g *rig) http.Handler {
			mux := chi.NewRouter()
			mux.Method("POST", "/v1/orders", handler(g, "POST /v1/orders", created))
			mux.Route("/v1/orders/{id:[a-z0-9%-]+}", func(r chi.Router) {
				r.Method("POST", "/cancel", handler(g, "POST /v1/orders/{id:[a-z0-9%-]+}/cancel", cancelled))
				r.Method("GET", "/", find(g, "/v1/orders/{id:[a-z0-9%-]+}"))
			})
			return mux
		},
		"echo": func(g *rig) http.Handler {
			mux := echo.New()
			mux.POST("/v1/orders", echo.WrapHandler(handler(g, "/v1/orders", created)))
			mux.POST("/v1/orders/:id/cancel", echo.WrapHandler(handler(g, "/v1/orders/:id/cancel", cancelled)))
			mux.GET("/v1/orders/:id", echo.WrapHandler(find(g, "/v1/orders/:id")))
			return mux
		},
	}
	for name, router := range routers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newRig(t, setup{})
			s := server(t, router(g))
			post := func(path, body string, headers string) *reply { return raw(t, s, "POST", path, headers+"\r\n", body) }
			first := post("/v1/orders", usual, k1).ok(201, "false")
			second := post("/v1/orders", usual, k1).ok(201, "true")
			same(t, "body", second.body, first.body)
			same(t, "location", second.header.Get("Location"), "/v1/orders/o-c-1")
			same(t, "original", second.header.Get("Idempotency-Original-Request-ID"), first.id())
			post("/v1/orders", `{"cart_id":"c-1","amount":1}`, k1).fails(409, conflict, httpedge.Never)
			post("/v1/orders", usual, k1+"\r\n"+k1).fails(400, invalid, httpedge.NewKey)

			post("/v1/orders/7/cancel", "", k1).ok(204, "false")
			post("/v1/orders/7/cancel", "", k1).ok(204, "true")
			post("/v1/orders/8/cancel", "", k1).fails(409, conflict, httpedge.Never)
			same(t, "rows", g.mem.Rows(), []string{"c-1", "7"})

			same(t, "found", raw(t, s, "GET", "/v1/orders/o-7", k1+"\r\n", "").ok(200, "").body, `{"order_id":"o-7","cart_id":"","amount":0}`+"\n")
		})
	}
}
