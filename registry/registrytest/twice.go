package registrytest

import (
	"bytes"
	"context"
	"io"
	"net/http"
)

// Twice delivers everything twice, one after the other, and gives the second outcome: what a broker does that has lost an
// acknowledgement. handle is a function that receives messages, such as msgedge.Consumer.Receive. The message is handed over as it is, so a
// handler that changes what the message points to is found out. It is safe for concurrent use if handle is.
func Twice[M, V any](handle func(context.Context, M) V) func(context.Context, M) V {
	return func(ctx context.Context, m M) V {
		handle(ctx, m)
		return handle(ctx, m)
	}
}

// TwiceHTTP serves every request twice, one after the other, and gives the answer to the second: what a client does that has not got
// the first one. The body is read to its end before. An answer to the first that was never written is nobody's business. What the
// ResponseWriter can do besides (Flush, Hijack) the first of the two does not have. A body that cannot be read is answered with
// 400. It is safe for concurrent use if next is.
func TwiceHTTP(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body []byte
		if r.Body != nil { // as http.NewRequest leaves it where there is none
			var err error
			if body, err = io.ReadAll(r.Body); err != nil {
				http.Error(w, "registrytest: the body could not be read", http.StatusBadRequest)
				return
			}
		}
		for _, w := range []http.ResponseWriter{lost{http.Header{}}, w} {
			again := r.Clone(r.Context())
			again.Body = io.NopCloser(bytes.NewReader(body))
			next.ServeHTTP(w, again)
		}
	})
}

// lost is where an answer goes that nobody gets.
type lost struct{ header http.Header }

func (l lost) Header() http.Header         { return l.header }
func (l lost) Write(p []byte) (int, error) { return len(p), nil }
func (l lost) WriteHeader(int)             {}
