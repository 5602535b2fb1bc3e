package lostdownstream

import (
	. "commands"

	"context"
	"net/http"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/registry"
)

type provider struct{ client *http.Client }

func (p provider) charge(ctx context.Context, key string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://provider", nil)
	if err != nil {
		return err
	}
	req.Header.Set("Idempotency-Key", key)
	_, err = p.client.Do(req) // want `http.Client.Do in the handler of a Leased command without idempotency.DownstreamKey`
	return err
}

func (p provider) refund(ctx context.Context, key string) error {
	_, err := p.client.Post("http://provider", "", nil)
	return err
}

func (p provider) look(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, "GET", "http://provider", nil)
	if err != nil {
		return err
	}
	_, err = p.client.Do(req)
	return err
}

func keyOf(ctx context.Context) (string, error) { return idempotency.DownstreamKey(ctx, "charge") }

func wire(r *registry.Registry, p provider) {
	registry.Handle(r, func(ctx context.Context, cmd Pay) (Placed, error) {
		return Placed{}, p.charge(ctx, "made-up")
	})
	registry.Handle(r, func(ctx context.Context, cmd Pay) (Placed, error) {
		key, err := keyOf(ctx)
		if err != nil {
			return Placed{}, err
		}
		return Placed{}, p.refund(ctx, key)
	})
	registry.Handle(r, func(ctx context.Context, cmd Pay) (Placed, error) { return Placed{}, p.look(ctx) })
	registry.Handle(r, func(ctx context.Context, cmd Pay) (Placed, error) {
		_, err := http.Get("http://rates")
		return Placed{}, err
	})
	registry.Handle(r, func(ctx context.Context, cmd Later) (Placed, error) {
		_, err := http.Post("http://provider", "", nil)
		return Placed{}, err
	})
}
