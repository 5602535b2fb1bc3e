package freshkey

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/tekil-go/tekil/requestctx"
	"github.com/tekil-go/tekil/requestctx/msgedge"
	"github.com/tekil-go/tekil/requestctx/msgedge/watermilledge"
)

func serve(w http.ResponseWriter, r *http.Request) {
	key := r.Header.Get("Idempotency-Key")
	if key == "" {
		key = uuid.NewString()
	}
	requestctx.ParseKey(key)                             // want `the idempotency key is made up here`
	requestctx.ParseKey("order-" + uuid.New().String())  // want `made up`
	requestctx.ParseKey(r.Header.Get("Idempotency-Key")) // the sender's
	out, _ := http.NewRequest("POST", "http://backend", nil)
	out.Header.Set("idempotency-key", rand.Text()) // want `made up`
	out.Header.Set("X-Request-ID", uuid.NewString())
	out.Header.Set("Idempotency-Key", r.Header.Get("Idempotency-Key"))
}

func middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, err := uuid.NewV7()
		if err != nil {
			return
		}
		r.Header.Set("Idempotency-Key", id.String()) // want `made up`
		next.ServeHTTP(w, r)
	})
}

func job(ctx context.Context) {
	key, _ := requestctx.ParseKey(fmt.Sprintf("run-%d", time.Now().UnixNano())) // want `made up`
	requestctx.New(ctx, requestctx.Values{Key: key})
	key, _ = requestctx.ParseKey(time.Now().UTC().Format(time.RFC3339))       // want `made up`
	key, _ = requestctx.ParseKey(requestctx.NewID())                          // want `made up`
	key, _ = requestctx.ParseKey("report-" + time.Now().Format("2006-01-02")) // one intent for each day
	key, _ = requestctx.ParseKey(uuid.NewSHA1(uuid.UUID{}, []byte("order-7")).String())
	sum := sha256.Sum256([]byte("order-7"))
	key, _ = requestctx.ParseKey(hex.EncodeToString(sum[:]))
}

type drafts struct{}

func (drafts) Save(ctx context.Context, key string) error { return nil }

// kept stores its key before it is used, so that a restart finds it.
func kept(ctx context.Context, d drafts) {
	id := uuid.NewString()
	if d.Save(ctx, id) != nil {
		return
	}
	key, _ := requestctx.ParseKey(id)
	requestctx.New(ctx, requestctx.Values{Key: key})
}

// begin is the side that starts an intent.
func begin() (*http.Request, error) {
	r, err := http.NewRequest("POST", "http://shop/orders", nil)
	r.Header.Set("Idempotency-Key", uuid.NewString())
	return r, err
}

func start() (requestctx.Key, error) { return requestctx.ParseKey(uuid.NewString()) }

func receive(id string) msgedge.Message {
	m := msgedge.Message{ID: id, Type: uuid.NewString()}
	if m.ID == "" {
		m.ID = uuid.Must(uuid.NewV7()).String() // want `the id of the message is made up`
	}
	_ = msgedge.Message{ID: uuid.NewString()} // want `the id of the message is made up`
	return m
}

var _ = watermilledge.Out{Type: "order.placed", ID: uuid.NewString()} // want `the id of the message that is sent`
var _ = watermilledge.Out{Type: "order.placed", Body: uuid.NewString()}

type marshaler struct{}

func (marshaler) Unmarshal(id string, body []byte) (*message.Message, error) {
	if id != "" {
		return message.NewMessage(id, body), nil
	}
	return message.NewMessage(uuid.NewString(), body), nil // want `the id of the message is made up`
}

func publish(body []byte) *message.Message { return message.NewMessage(uuid.NewString(), body) }
