package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
)

// Charge is what a payment provider is asked to authorise.
type Charge struct {
	CartID   string `json:"cart_id"`
	Amount   int64  `json:"amount"`
	Currency string `json:"currency"`
}

func chargeFor(cmd Place) Charge { return Charge{cmd.CartID, cmd.Amount, cmd.Currency} }

// Authorization is money that a payment provider holds for us.
type Authorization struct {
	ID string `json:"id"`
	// Key is the key under which it was asked for; empty where there was none.
	Key string `json:"key,omitempty"`
	Charge
	CreatedAt time.Time `json:"created_at"`
}

// Held is what a payment provider holds.
type Held struct {
	Total int `json:"total"`
	// Authorizations are the newest.
	Authorizations []Authorization `json:"authorizations"`
}

// payments is the payment provider as the checkout sees it.
type payments interface {
	// authorize asks for an authorisation, under a key or, where it is empty, without one. Its errors are classified for a Leased
	// handler: final, unknown, or without a mark where it is certain that nothing was authorised.
	authorize(ctx context.Context, key string, c Charge) (Authorization, error)
	// find looks for the authorisation of a key.
	find(ctx context.Context, key string) (a Authorization, found bool, err error)
	list(ctx context.Context) (Held, error)
}

// provider calls a payment provider over HTTP.
type provider struct {
	base   string // its URL, without a slash at the end
	client *http.Client
}

// newProvider calls the provider at base. A call takes no longer than timeout.
func newProvider(base string, timeout time.Duration) *provider {
	return &provider{base, &http.Client{
		Timeout:   timeout,
		Transport: http.DefaultTransport.(*http.Transport).Clone(), // its own connections, so that close closes no others
		// A payment is not sent to where an answer says.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

func (p *provider) close() { p.client.CloseIdleConnections() }

// notDone is the code by which the provider says that a request has changed nothing, whatever its status.
const notDone = "NOT_DONE"

// keyReused is its code for a key that belongs to another charge.
const keyReused = "KEY_REUSED"

func (p *provider) authorize(ctx context.Context, key string, c Charge) (Authorization, error) {
	var a Authorization
	body, err := json.Marshal(c)
	if err != nil {
		return a, err
	}
	var connected atomic.Bool // before that, not a byte has left
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }})
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, p.base+"/authorizations", bytes.NewReader(body))
	if err != nil {
		return a, err
	}
	r.Header.Set("Content-Type", "application/json")
	if key != "" { // net/http may then send the request again by itself, when a connection that it had kept turns out to be dead
		r.Header.Set("Idempotency-Key", key)
	}
	status, answer, err := p.do(r)
	var problem struct{ Code string }
	if status >= 400 {
		_ = json.Unmarshal(answer, &problem) // what is not JSON has no code
	}
	switch {
	case err != nil && !connected.Load():
		return a, fmt.Errorf("%w (%w)", errProviderAway, err)
	case err != nil: // a timeout, or a connection that broke: it may have been done
		return a, idempotency.Unknown(fmt.Errorf("provider: %w", err))
	case status == http.StatusOK, status == http.StatusCreated:
		if err := json.Unmarshal(answer, &a); err != nil || a.ID == "" {
			return a, idempotency.Unknown(errors.New("provider: it has answered something else than an authorisation"))
		}
		return a, nil
	case status == http.StatusPaymentRequired:
		return a, idempotency.Final(errDeclined) // an outcome like any other: the same key gets it again
	case status == http.StatusConflict && problem.Code == keyReused:
		return a, idempotency.Final(errOtherPayment)
	case status == http.StatusTooManyRequests, problem.Code == notDone:
		return a, fmt.Errorf("%w (status %d)", errProviderAway, status)
	case status >= 500, status == http.StatusConflict, status == http.StatusRequestTimeout: // its trouble may have come after the work
		return a, idempotency.Unknown(fmt.Errorf("provider: status %d", status))
	}
	return a, fmt.Errorf("provider: it does not take the request (status %d)", status)
}

func (p *provider) find(ctx context.Context, key string) (a Authorization, found bool, err error) {
	held, err := p.get(ctx, url.Values{"key": {key}})
	if err != nil || len(held.Authorizations) == 0 {
		return a, false, err
	}
	return held.Authorizations[0], true, nil
}

func (p *provider) list(ctx context.Context) (Held, error) { return p.get(ctx, nil) }

// get asks what the provider holds.
func (p *provider) get(ctx context.Context, query url.Values) (held Held, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.base+"/authorizations?"+query.Encode(), nil)
	if err != nil {
		return held, err
	}
	status, answer, err := p.do(r)
	switch {
	case err != nil:
		return held, fmt.Errorf("%w (%w)", errProviderAway, err)
	case status != http.StatusOK:
		return held, fmt.Errorf("%w (status %d)", errProviderAway, status)
	}
	if err := json.Unmarshal(answer, &held); err != nil || held.Authorizations == nil { // no list is not an empty list
		return held, fmt.Errorf("%w (it has answered something else than a list)", errProviderAway)
	}
	return held, nil
}

// do sends a request and reads the answer.
func (p *provider) do(r *http.Request) (status int, body []byte, err error) {
	res, err := p.client.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer res.Body.Close()
	body, err = io.ReadAll(io.LimitReader(res.Body, 1<<20))
	return res.StatusCode, body, err
}

// providerURL reads the URL of a provider. No part of a wrong one is quoted: it may hold a password.
func providerURL(s string) (string, error) {
	u, err := url.Parse(s)
	if bad, ok := errors.AsType[*url.Error](err); ok {
		return "", bad.Err
	}
	switch {
	case err != nil:
		return "", errors.New("it is not a URL")
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "":
		return "", errors.New("it is neither a URL that begins with http:// or https:// nor the word embedded")
	case u.User != nil, u.RawQuery != "", u.Fragment != "":
		return "", errors.New("it holds more than the provider's address: no user, query or fragment belongs there")
	}
	return strings.TrimRight(u.String(), "/"), nil
}
