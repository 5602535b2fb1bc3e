package main

import (
	"net"
	"net/http"
	"time"
)

// servePage has a page at an address of its own, which it gives, until end is called.
func servePage(addr string, page http.Handler) (at string, end func(), err error) {
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return "", nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", page)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(listener) // until end
	}()
	return listener.Addr().String(), func() {
		_ = server.Close() // whoever reads just now comes again and finds nobody
		<-served
	}, nil
}
