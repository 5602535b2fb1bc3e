package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"sync/atomic"
	"time"
)

// line is the bad line: a reverse proxy that drops, delays and doubles by chance.
type line struct {
	settings
	base      string // where it listens
	transport *http.Transport
	server    *http.Server
	served    chan struct{}
	ctx       context.Context // ends when the line is closed: a request is on its way whether or not the client still waits
	cancel    context.CancelFunc
	counts    lineCounts
}

// lineCounts is what the line did. Away counts the requests that found no server, or one that died under them.
type lineCounts struct {
	before, after, delayed, doubled, away atomic.Int64
}

var errDropped = errors.New("the line has dropped it")

// openLine opens a line to the server at base.
func openLine(base string, s settings) (*line, error) {
	target, err := url.Parse(base)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l := &line{
		settings: s, base: "http://" + listener.Addr().String(), served: make(chan struct{}),
		transport: &http.Transport{MaxIdleConnsPerHost: 2 * s.workers},
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	silent := log.New(io.Discard, "", 0)
	l.server = &http.Server{ReadHeaderTimeout: 10 * time.Second, ErrorLog: silent, Handler: &httputil.ReverseProxy{
		Rewrite:   func(p *httputil.ProxyRequest) { p.SetURL(target) },
		Transport: l,
		ErrorLog:  silent,
		// The client sees a connection that breaks.
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}}
	go func() {
		defer close(l.served)
		_ = l.server.Serve(listener)
	}()
	return l, nil
}

// RoundTrip is a request's way over the line. Every error breaks the client's connection.
func (l *line) RoundTrip(req *http.Request) (*http.Response, error) {
	var body []byte
	if req.Body != nil {
		var err error
		if body, err = io.ReadAll(req.Body); err != nil {
			return nil, err
		}
	}
	chance := rand.Float64()
	before, after := chance < l.drop/2, chance >= l.drop/2 && chance < l.drop
	if before {
		l.counts.before.Add(1)
		return nil, errDropped
	}
	if l.delay > 0 && rand.IntN(2) == 0 {
		l.counts.delayed.Add(1)
		select {
		case <-l.ctx.Done():
			return nil, l.ctx.Err()
		case <-time.After(rand.N(l.delay)):
		}
	}
	times := 1
	if rand.Float64() < l.double {
		l.counts.doubled.Add(1)
		times = 2
	}
	var answers [2]*http.Response
	var errs [2]error
	var both sync.WaitGroup
	for i := range times {
		both.Go(func() { answers[i], errs[i] = l.forward(req, body) })
	}
	both.Wait()
	given := rand.IntN(times) // any of the two answers, the later one as well
	switch {
	case errs[given] != nil:
		l.counts.away.Add(1)
		return nil, errs[given]
	case after:
		l.counts.after.Add(1)
		return nil, errDropped
	}
	return answers[given], nil
}

// forward sends the request to the server once and reads the whole answer.
func (l *line) forward(req *http.Request, body []byte) (*http.Response, error) {
	out := req.Clone(l.ctx)
	out.Body, out.GetBody, out.ContentLength = io.NopCloser(bytes.NewReader(body)), nil, int64(len(body))
	resp, err := l.transport.RoundTrip(out)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	resp.Body = io.NopCloser(bytes.NewReader(answer))
	return resp, nil
}

// drain waits until nothing is on its way any more.
func (l *line) drain() {
	ctx, cancel := context.WithTimeout(context.Background(), total)
	defer cancel()
	_ = l.server.Shutdown(ctx)
}

// close ends the line and what is on its way.
func (l *line) close() {
	l.cancel()
	l.drain()
	<-l.served
	l.transport.CloseIdleConnections()
}
