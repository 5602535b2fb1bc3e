package main

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"go.uber.org/zap"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/console"
)

// login is who may use the console. The zero login is nobody.
type login struct{ name, password string }

// Set and String make it a flag. Set takes everything, because package flag prints what is refused there: see check.
func (l *login) Set(s string) error {
	l.name, l.password, _ = strings.Cut(s, ":")
	return nil
}

func (l *login) check() error {
	if *l != (login{}) && (strings.TrimSpace(l.name) == "" || len(l.password) < 8) {
		return errors.New("-console is a name and a password of 8 characters or more with a colon in between, for example -console ada:a-long-password")
	}
	return nil
}

func (l *login) String() string {
	if *l == (login{}) {
		return ""
	}
	return l.name + ":…"
}

// who is HTTP's own log-in: enough for a demonstration on the loopback address. An application has one of its own. The password is compared where the name is
// wrong as well, so that the time tells neither.
func (l *login) who(r *http.Request) (string, error) {
	name, password, _ := r.BasicAuth()
	if same(name, l.name)&same(password, l.password) != 1 || *l == (login{}) {
		return "", errors.New("nobody of ours")
	}
	return l.name, nil
}

// same is 1 for texts that are the same. It compares in a time that tells nothing.
func same(a, b string) int {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:])
}

const consolePath = "/ops/records"

// withConsole adds the page for whoever is asked what became of a payment. It stands outside of the switches, and is not there without a
// log-in.
func withConsole(next http.Handler, store idempotency.Store, logger *zap.Logger, pipeline fmt.Stringer, l login) (http.Handler, error) {
	if l == (login{}) {
		return next, nil
	}
	admin, err := idempotency.NewAdmin(idempotency.AdminConfig{Store: store, Logger: logger})
	if err != nil {
		return nil, err
	}
	records, err := console.New(console.Config{Admin: admin, Who: l.who, Pipeline: pipeline})
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("/", next)
	mux.HandleFunc(consolePath+"/", func(w http.ResponseWriter, r *http.Request) {
		if _, err := l.who(r); err != nil { // a browser asks the person when it sees this
			w.Header().Set("WWW-Authenticate", `Basic realm="records", charset="UTF-8"`)
			http.Error(w, "This page is for whoever was given its name and password (-console).", http.StatusUnauthorized)
			return
		}
		http.StripPrefix(consolePath, records).ServeHTTP(w, r)
	})
	return mux, nil
}
