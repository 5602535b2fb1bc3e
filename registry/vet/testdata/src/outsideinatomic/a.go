package outsideinatomic

import (
	. "commands"

	"context"
	"net"
	"net/http"
	"net/smtp"

	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/registry"
)

func wire(r *registry.Registry, client *http.Client) {
	registry.Handle(r, func(ctx context.Context, cmd Place) (Placed, error) {
		http.Get("http://provider") // want `http.Get in the handler of an Atomic command`
		req, _ := http.NewRequestWithContext(ctx, "POST", "http://provider", nil)
		client.Do(req)                                         // want `http.Client.Do in the handler`
		smtp.SendMail("mail:25", nil, "a", nil, nil)           // want `smtp.SendMail`
		net.Dial("tcp", "provider:80")                         // want `net.Dial`
		new(net.Dialer).DialContext(ctx, "tcp", "provider:80") // want `net.Dialer.DialContext`
		return Placed{}, notify(client)
	})
	registry.Handle(r, func(ctx context.Context, cmd Pay) (Placed, error) {
		_, err := http.Get("http://provider")
		return Placed{}, err
	})
	registry.Handle(r, func(ctx context.Context, cmd Note) (bus.None, error) {
		_, err := http.Get("http://provider")
		return bus.None{}, err
	})
}

func notify(client *http.Client) error {
	_, err := client.Post("http://provider", "text/plain", nil) // want `http.Client.Post`
	return err
}

// ask is a client of such a server, and not a handler.
func ask(ctx context.Context, cmd Place) (Placed, error) {
	_, err := http.Post("http://shop", "application/json", nil)
	return Placed{}, err
}
