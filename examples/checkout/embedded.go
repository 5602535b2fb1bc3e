package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"
)

const embeddedSchema = `
CREATE TABLE IF NOT EXISTS provider_authorizations (
	number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, key TEXT UNIQUE, cart_id TEXT NOT NULL, amount INTEGER NOT NULL, currency TEXT NOT NULL,
	created_at INTEGER NOT NULL) STRICT;`

// embedded is the payment provider that the example brings, so that the other side of a call can be seen. It shares nothing with the
// checkout: it has its own listener and its own database, and knows neither orders nor records.
//
//	POST /authorizations        authorises a charge: 201, or 200 where the Idempotency-Key has done so before
//	GET  /authorizations        what it holds, the newest first
//	GET  /authorizations?key=…  the authorisation of a key, if there is one
//
// It is as awkward as a provider can be: it records first and takes its time afterwards, a caller that hangs up stops nothing, and an
// error that it answers may mean that nothing was done or that everything was.
type embedded struct {
	db *sql.DB
	// delay is how long it sleeps between the record and the answer.
	delay time.Duration
	// failRate is the share of requests that fail: half of them before the record, with 503 and the code NOT_DONE, and half of them
	// after it, with 500 and no word about that.
	failRate float64
	random   func() float64 // at least 0 and less than 1
	ending   chan struct{}  // closed when nobody shall sleep any more
}

// openEmbedded makes the provider on an SQLite file.
func openEmbedded(ctx context.Context, path string, delay time.Duration, failRate float64) (*embedded, error) {
	db, err := openFile(path)
	if err != nil {
		return nil, err
	}
	p := &embedded{db: db, delay: delay, failRate: failRate, random: rand.Float64, ending: make(chan struct{})}
	_, err = db.ExecContext(ctx, embeddedSchema)
	var mode string
	if err == nil {
		err = db.QueryRowContext(ctx, `PRAGMA journal_mode`).Scan(&mode)
	}
	if err == nil && mode != "wal" {
		err = errors.New("this is a database in memory: what a provider knows outlives its callers")
	}
	if err == nil {
		_, err = p.held(ctx, "") // a table of that name may be another program's
	}
	if err != nil {
		db.Close()
		return nil, err
	}
	return p, nil
}

// serve gives the provider an address of its own. stop ends it.
func (p *embedded) serve() (base string, stop func(), err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		p.db.Close()
		return "", nil, err
	}
	server := &http.Server{Handler: p.handler(), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(listener) // until stop
	}()
	return "http://" + listener.Addr().String(), func() {
		close(p.ending)
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = server.Shutdown(ctx) // what is not done by then was recorded long ago
		<-served
		p.db.Close()
	}, nil
}

func (p *embedded) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /authorizations", p.authorize)
	mux.HandleFunc("GET /authorizations", func(w http.ResponseWriter, r *http.Request) {
		held, err := p.held(r.Context(), r.URL.Query().Get("key"))
		if err != nil {
			say(w, http.StatusInternalServerError, refusal{"INTERNAL"})
			return
		}
		say(w, http.StatusOK, held)
	})
	return mux
}

// refusal is the body of an error.
type refusal struct {
	Code string `json:"code"`
}

func (p *embedded) authorize(w http.ResponseWriter, r *http.Request) {
	var c Charge
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<16)).Decode(&c)
	key := r.Header.Get("Idempotency-Key")
	if err != nil || c.CartID == "" || c.Amount <= 0 || c.Currency == "" || len(key) > 255 {
		say(w, http.StatusBadRequest, refusal{"INVALID"})
		return
	}
	if strings.HasSuffix(c.CartID, "-declined") {
		say(w, http.StatusPaymentRequired, refusal{"DECLINED"})
		return
	}
	luck := p.random()
	if luck < p.failRate/2 {
		say(w, http.StatusServiceUnavailable, refusal{notDone})
		return
	}
	// First the record: from here on the money is authorised, whatever becomes of the caller.
	a, known, err := p.record(context.WithoutCancel(r.Context()), key, c)
	if err != nil {
		say(w, http.StatusInternalServerError, refusal{"INTERNAL"})
		return
	}
	if !known {
		p.sleep()
	}
	switch {
	case luck < p.failRate:
		say(w, http.StatusInternalServerError, refusal{"INTERNAL"})
	case a.Charge != c:
		say(w, http.StatusConflict, refusal{keyReused})
	case known:
		say(w, http.StatusOK, a)
	default:
		say(w, http.StatusCreated, a)
	}
}

// record writes an authorisation, or finds that of the key.
func (p *embedded) record(ctx context.Context, key string, c Charge) (a Authorization, known bool, err error) {
	id, err := uuid.NewV7()
	if err != nil {
		return a, false, err
	}
	a = Authorization{ID: "auth_" + id.String(), Key: key, Charge: c, CreatedAt: time.Now().UTC().Truncate(time.Millisecond)}
	// NULLs are not equal to each other: without a key all is new.
	done, err := p.db.ExecContext(ctx, `INSERT INTO provider_authorizations (id, key, cart_id, amount, currency, created_at)
		VALUES (?, NULLIF(?, ''), ?, ?, ?, ?) ON CONFLICT (key) DO NOTHING`,
		a.ID, key, c.CartID, c.Amount, c.Currency, a.CreatedAt.UnixMilli())
	if err != nil {
		return a, false, err
	}
	if rows, err := done.RowsAffected(); err != nil || rows > 0 {
		return a, false, err
	}
	held, err := p.held(ctx, key)
	if err != nil || len(held.Authorizations) == 0 {
		return a, false, errors.Join(err, errors.New("the authorisation has vanished"))
	}
	return held.Authorizations[0], true, nil
}

// held is what there is, or what there is under a key where one is given: the newest hundred.
func (p *embedded) held(ctx context.Context, key string) (Held, error) {
	held := Held{Authorizations: []Authorization{}}
	rows, err := p.db.QueryContext(ctx, `SELECT count(*) OVER (), id, coalesce(key, ''), cart_id, amount, currency, created_at
		FROM provider_authorizations WHERE ?1 = '' OR key = ?1 ORDER BY number DESC LIMIT 100`, key)
	if err != nil {
		return held, err
	}
	defer rows.Close()
	for rows.Next() {
		var a Authorization
		var created int64
		if err := rows.Scan(&held.Total, &a.ID, &a.Key, &a.CartID, &a.Amount, &a.Currency, &created); err != nil {
			return held, err
		}
		a.CreatedAt = time.UnixMilli(created).UTC()
		held.Authorizations = append(held.Authorizations, a)
	}
	return held, rows.Err()
}

// sleep does not look at the caller: it does not matter whether anybody still waits.
func (p *embedded) sleep() {
	if p.delay <= 0 {
		return
	}
	timer := time.NewTimer(p.delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-p.ending:
	}
}

func say(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}
