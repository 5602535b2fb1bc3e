package httpedge

import (
	"net/http"
	"strconv"
)

// writer knows whether an answer has been begun. [http.ResponseController] finds what else the server's writer can do.
type writer struct {
	http.ResponseWriter
	wrote bool
	codec *Codec // of the answer
}

func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *writer) WriteHeader(status int) {
	if status >= 200 || status == http.StatusSwitchingProtocols {
		w.wrote = true
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *writer) Write(b []byte) (int, error) {
	w.wrote = true
	return w.ResponseWriter.Write(b)
}

// Flush is for handlers that stream and ask for an [http.Flusher].
func (w *writer) Flush() {
	w.wrote = true
	_ = http.NewResponseController(w.ResponseWriter).Flush() // a writer that cannot flush does so at the end
}

// send writes a body that is complete.
func send(w http.ResponseWriter, status int, contentType string, body []byte) {
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client has gone; it will ask again
}
