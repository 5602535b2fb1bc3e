package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"

	"github.com/tekil-go/tekil/requestctx"
)

// tokens are the clients that may come in. Of their tokens only the SHA-256 is kept.
type tokens []client

type client struct {
	principal string
	token     [sha256.Size]byte
}

// Bounds of a line of the file, in characters.
const (
	maxPrincipal = 64
	minToken     = 16
	maxToken     = 512
)

// readTokens reads a file of lines "principal token". Empty lines, and those that begin with #, are passed over. Several tokens may name
// one principal, whose keys are then one space: a token can be replaced without losing them (rule rec-9). Errors name the line and never
// hold what stands in it.
func readTokens(path string) (tokens, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var clients tokens
	lines := bufio.NewScanner(bytes.NewReader(data))
	for number := 1; lines.Scan(); number++ {
		line := strings.TrimRight(lines.Text(), "\r")
		if line == "" || line[0] == '#' {
			continue
		}
		c, err := parseClient(line)
		if err == nil && clients.holds(c.token) {
			err = errors.New("its token stands in an earlier line as well")
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		clients = append(clients, c)
	}
	if lines.Err() != nil {
		return nil, errors.New("a line is too long; write a principal, a space and a token")
	}
	if len(clients) == 0 {
		return nil, errors.New("there is no token in it, so nobody could come in; leave -tokens out if all callers are meant to be anonymous")
	}
	return clients, nil
}

func parseClient(line string) (client, error) {
	principal, token, ok := strings.Cut(line, " ")
	switch {
	case !ok:
		return client{}, errors.New("it is not a principal, one space and a token")
	case len(principal) < 1 || len(principal) > maxPrincipal || !visible(principal):
		return client{}, fmt.Errorf("its principal is not 1 to %d visible ASCII characters", maxPrincipal)
	case principal == requestctx.Anonymous:
		return client{}, errors.New("its principal is the name of those who have none; choose another")
	case len(token) < minToken || len(token) > maxToken || !visible(token):
		return client{}, fmt.Errorf("its token is not %d to %d visible ASCII characters", minToken, maxToken)
	}
	return client{principal, sha256.Sum256([]byte(token))}, nil
}

func visible(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}

func (t tokens) holds(token [sha256.Size]byte) bool {
	for _, c := range t {
		if c.token == token {
			return true
		}
	}
	return false
}

// principal gives the client whose token it is, or "". How long it takes does not depend on which token comes close.
func (t tokens) principal(token string) (principal string) {
	sum := sha256.Sum256([]byte(token))
	for _, c := range t {
		if subtle.ConstantTimeCompare(sum[:], c.token[:]) == 1 {
			principal = c.principal
		}
	}
	return principal
}

var errToken = &codeError{code: "UNAUTHENTICATED"}

// authenticate gives the client of a request by the token of its one Authorization header, of the scheme Bearer. The error tells nothing
// of what was sent.
func (t tokens) authenticate(r *http.Request) (string, error) {
	headers := r.Header.Values("Authorization")
	if len(headers) != 1 {
		return "", errToken
	}
	scheme, token, _ := strings.Cut(headers[0], " ")
	if principal := t.principal(token); principal != "" && strings.EqualFold(scheme, "Bearer") {
		return principal, nil
	}
	return "", errToken
}
