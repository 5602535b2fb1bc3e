package console

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"mime"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/tekil-go/tekil/behaviors/idempotency"
)

const (
	// DefaultTimeout bounds what a request asks of the store.
	DefaultTimeout = 5 * time.Second
	// DefaultCountTimeout bounds the counts of the first page.
	DefaultCountTimeout = 2 * time.Second
)

// Config is what a console needs.
type Config struct {
	// Admin finds, counts and releases records. It must be set.
	Admin *idempotency.Admin
	// Who says who makes a request, and whether that person may use the console at all: the application's own log-in. It must be set, because a
	// console that forgot to ask would show everybody's records to everybody. It is asked once for each request, that for the style
	// sheet included, before anything else is looked at. An error or a blank name refuses the request with 403; the error is not shown. The name
	// stands on the page and, with a release, in the log ([idempotency.Intervention]).
	Who func(*http.Request) (name string, err error)
	// Pipeline is what the bus was built of: registry's Describe(). Its String is a page and its JSON what a script gets. Nil: there is no such
	// page.
	Pipeline fmt.Stringer
	// Timeout bounds what a request asks of the store. Zero: [DefaultTimeout].
	Timeout time.Duration
	// CountTimeout bounds the counts of the first page, which read the whole table. Zero: [DefaultCountTimeout].
	CountTimeout time.Duration
	// Log gets the store's errors, which no answer shows, and a line at level Info for each search (who, by what kind, how many were found;
	// never what was searched for), for each record that is looked at (who, operation_id) and for each request that Who has refused (path). What is
	// changed is in the log of Admin. Nil: slog.Default().
	Log *slog.Logger
}

// New makes the handler of a console. See the package's documentation for its routes and how to mount it. It may be used concurrently.
func New(cfg Config) (http.Handler, error) {
	switch {
	case cfg.Admin == nil:
		return nil, errors.New("console: Config.Admin is not set")
	case cfg.Who == nil:
		return nil, errors.New("console: Config.Who is not set; it says who may see the records, and nobody else does")
	case cfg.Timeout < 0, cfg.CountTimeout < 0:
		return nil, errors.New("console: Config.Timeout and Config.CountTimeout must not be negative")
	}
	cfg.Timeout, cfg.CountTimeout = cmp.Or(cfg.Timeout, DefaultTimeout), cmp.Or(cfg.CountTimeout, DefaultCountTimeout)
	c := &console{cfg: cfg, origin: http.NewCrossOriginProtection(), counting: make(chan struct{}, 1)}
	if cfg.Pipeline != nil {
		described, err := json.Marshal(cfg.Pipeline)
		if err != nil {
			return nil, fmt.Errorf("console: Config.Pipeline cannot be written as JSON: %w", err)
		}
		c.pipeline = &pipelineView{JSON: described, Text: cfg.Pipeline.String()}
	}
	return c, nil
}

type console struct {
	cfg      Config
	origin   *http.CrossOriginProtection
	pipeline *pipelineView // nil for none
	counting chan struct{} // full while somebody counts: a mutex for which nobody waits longer than for the counts
	counted  atomic.Pointer[counted]
}

// counted is what a count has given, which others see for a while.
type counted struct {
	at     time.Time
	counts []idempotency.Count
	slow   bool
}

// countsLast is for how long nobody counts again.
const countsLast = 5 * time.Second

func (c *counted) fresh() bool { return c != nil && time.Since(c.at) < countsLast }

// count counts the records, unless somebody just has: whoever loads the first page over and over does not keep the database busy with it. That
// there was too little time is kept as well.
func (x *exchange) count(ctx context.Context) ([]idempotency.Count, error) {
	last := x.counted.Load()
	if !last.fresh() {
		select {
		case x.counting <- struct{}{}:
			defer func() { <-x.counting }()
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		last = x.counted.Load() // of whoever counted meanwhile
	}
	if !last.fresh() {
		counts, err := x.cfg.Admin.Count(ctx)
		slow := err != nil && x.r.Context().Err() == nil && errors.Is(ctx.Err(), context.DeadlineExceeded)
		if err != nil && !slow {
			return nil, err
		}
		last = &counted{time.Now(), counts, slow}
		x.counted.Store(last)
	}
	if last.slow {
		return nil, errSlow
	}
	return last.counts, nil
}

// errSlow is what counting gives that took too long, now or a moment ago.
var errSlow = errors.New("console: counting the records took too long")

// exchange is one request.
type exchange struct {
	*console
	w    http.ResponseWriter
	r    *http.Request
	who  string
	path string // within the console, without the first slash
	json bool   // the answer
}

// answer is what a request gets. As JSON it is data; a page shows more round it.
type answer struct {
	status int
	view   string // the template that shows data
	data   any
	found  *searched // what was looked for, to stand in the form again
	notice string    // said above everything: something was done
	alert  string    // or was not
}

// problem is why a request does not get what it asks for.
type problem struct {
	Text string `json:"error"`
	Code string `json:"code"`

	status int
	allow  string
}

func malformed(format string, args ...any) *problem {
	return &problem{fmt.Sprintf(format, args...), "MALFORMED_REQUEST", http.StatusBadRequest, ""}
}

var (
	errForbidden = &problem{"You may not use this console, or you are not logged in.", "FORBIDDEN", http.StatusForbidden, ""}
	errOrigin    = &problem{"This request was sent by a page of another site, so nothing was done.", "CROSS_ORIGIN", http.StatusForbidden, ""}
	errNoPage    = &problem{"There is no such page.", "NOT_FOUND", http.StatusNotFound, ""}
	errNoRecord  = &problem{"There is no such record. It may have expired and been removed.", "RECORD_NOT_FOUND", http.StatusNotFound, ""}
	errAway      = &problem{"The store of records does not answer. Nothing can be said about any record just now; try again in a moment.",
		"IDEMPOTENCY_STORE_UNAVAILABLE", http.StatusServiceUnavailable, ""}
)

// pagePolicy allows a page its own style sheet and its own forms, and no script at all.
const pagePolicy = "default-src 'none'; style-src 'self'; img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

func (c *console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", pagePolicy)
	h.Set("X-Frame-Options", "DENY")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Robots-Tag", "noindex, nofollow")
	h.Set("Cache-Control", "no-store")
	// And not no-referrer, with which a browser sends "Origin: null" from our own forms: on a plain HTTP host, where it sends no Sec-Fetch-Site
	// either, that cannot be told from another site's.
	h.Set("Referrer-Policy", "same-origin")

	x := &exchange{console: c, w: w, r: r, path: strings.TrimPrefix(r.URL.Path, "/"), json: wantsJSON(r)}
	a, p := x.serve()
	switch {
	case p != nil:
		x.refuse(p)
	case a != nil:
		x.answer(a)
	}
}

// serve does what the request asks for. It gives neither where the answer is written already.
func (x *exchange) serve() (*answer, *problem) {
	who, err := x.cfg.Who(x.r)
	if err != nil || strings.TrimSpace(who) == "" {
		x.log(slog.LevelInfo, "console: a request was refused", slog.String("path", x.r.URL.Path))
		return nil, errForbidden
	}
	x.who = who
	if x.embedded() {
		return nil, errOrigin
	}
	method, do := x.route()
	reads := x.r.Method == http.MethodGet || x.r.Method == http.MethodHead
	switch {
	case do == nil:
		return nil, errNoPage
	case method == http.MethodPost && reads && !x.json: // the address of an answer to a form, opened anew
		x.redirect(x.root() + strings.TrimSuffix(strings.TrimSuffix(x.path, "search"), "/release"))
		return nil, nil
	case x.r.Method != method && !(method == http.MethodGet && reads):
		allow := method
		if method == http.MethodGet {
			allow = "GET, HEAD"
		}
		return nil, &problem{"This page does not have that method; it has " + allow + ".", "METHOD_NOT_ALLOWED", http.StatusMethodNotAllowed, allow}
	case x.origin.Check(x.r) != nil: // which lets GET and HEAD pass
		return nil, errOrigin
	}
	return do()
}

// embedded reports whether another site's page reads of ours, or makes the store work, as for an image or a frame of its own. Whoever follows a link from there
// gets the page.
func (x *exchange) embedded() bool {
	h := x.r.Header
	return h.Get("Sec-Fetch-Site") == "cross-site" && (x.r.Method == http.MethodGet || x.r.Method == http.MethodHead) &&
		(h.Get("Sec-Fetch-Mode") != "navigate" || h.Get("Sec-Fetch-Dest") != "document")
}

// route finds what a path does, and the one method by which it is asked.
func (x *exchange) route() (method string, do func() (*answer, *problem)) {
	switch id, isRecord := strings.CutPrefix(x.path, "records/"); {
	case x.path == "":
		return http.MethodGet, x.home
	case x.path == "console.css":
		return http.MethodGet, x.style
	case x.path == "stuck":
		return http.MethodGet, func() (*answer, *problem) { return x.search(searched{By: byStuck}) }
	case x.path == "pipeline" && x.pipeline != nil:
		return http.MethodGet, func() (*answer, *problem) { return &answer{view: "pipeline", data: x.pipeline}, nil }
	case x.path == "search":
		return http.MethodPost, x.searchForm
	case isRecord:
		id, release := strings.CutSuffix(id, "/release")
		parsed, ok := idempotency.ParseOperation(id)
		switch {
		case !ok, parsed == noID:
			return http.MethodGet, func() (*answer, *problem) { return nil, errNoRecord }
		case release:
			return http.MethodPost, func() (*answer, *problem) { return x.release(parsed) }
		}
		return http.MethodGet, func() (*answer, *problem) { return x.record(parsed) }
	}
	return "", nil
}

// home is the form, and how the records are. The form is of use without the counts, so their being too slow is no error of the page.
func (x *exchange) home() (*answer, *problem) {
	if asked, _, _ := strings.Cut(x.r.RequestURI, "?"); asked != "" && !strings.HasSuffix(asked, "/") {
		x.redirect("./" + path.Base(asked) + "/") // the links of the page are relative to it
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(x.r.Context(), x.cfg.CountTimeout)
	defer cancel()
	counts, err := x.count(ctx)
	a := &answer{view: "home", data: countsOf(counts)}
	if err == nil {
		return a, nil
	}
	p := x.failed(ctx, err, fmt.Sprintf("Counting the records took longer than %v, so they were not counted. Look for what is stuck or has failed by its own page.", x.cfg.CountTimeout))
	if x.json {
		return nil, p
	}
	a.data, a.alert = nil, p.Text
	if p == errAway {
		a.status = p.status
	}
	return a, nil
}

//go:embed console.css
var styleSheet []byte

func (x *exchange) style() (*answer, *problem) {
	x.w.Header().Set("Content-Type", "text/css; charset=utf-8")
	_, _ = x.w.Write(styleSheet)
	return nil, nil
}

// failed says why the store did not do something: it was too slow, or it is away.
func (x *exchange) failed(ctx context.Context, err error, slow string) *problem {
	switch {
	case x.r.Context().Err() != nil: // nobody reads the answer
		return errAway
	case err == errSlow, errors.Is(ctx.Err(), context.DeadlineExceeded):
		return &problem{slow, "DEADLINE_EXCEEDED", http.StatusServiceUnavailable, ""}
	}
	x.log(slog.LevelError, "console: the store of records does not answer", slog.Any("error", err))
	return errAway
}

func (x *exchange) log(level slog.Level, text string, attrs ...slog.Attr) {
	log := x.cfg.Log
	if log == nil {
		log = slog.Default()
	}
	log.LogAttrs(x.r.Context(), level, text, attrs...)
}

// wantsJSON reports whether the answer is for a script: it asks for JSON and not for a page, or has sent JSON itself.
func wantsJSON(r *http.Request) bool {
	accept := strings.Join(r.Header.Values("Accept"), ",")
	return !strings.Contains(accept, "text/html") && (strings.Contains(accept, "application/json") || sentAs(r) == "application/json")
}

// sentAs is the media type of the request's body.
func sentAs(r *http.Request) string {
	t, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return t
}

// maxBody bounds a request's body, in bytes: five fields of characters that a form writes as 12 bytes each.
const maxBody = 32 << 10

// body reads the fields of a form, or of a JSON object whose values are texts and truths. A truth is "true" or "". The query is not read: what
// stands there is kept by every proxy on the way.
func (x *exchange) body(names ...string) (map[string]string, *problem) {
	x.r.Body = http.MaxBytesReader(x.w, x.r.Body, maxBody)
	fields := map[string]string{}
	var err error
	switch sentAs(x.r) {
	case "application/json":
		sent := map[string]any{}
		if err = json.NewDecoder(x.r.Body).Decode(&sent); err != nil {
			break
		}
		for name, value := range sent {
			if !slices.Contains(names, name) {
				return nil, malformed("There is no field %q; there are %s.", name, strings.Join(names, ", "))
			}
			switch value := value.(type) {
			case string:
				fields[name] = value
			case bool:
				if value {
					fields[name] = "true"
				}
			default:
				return nil, malformed("The field %s must be a text or a truth value.", name)
			}
		}
	case "application/x-www-form-urlencoded":
		if err = x.r.ParseForm(); err != nil {
			break
		}
		for _, name := range names {
			fields[name] = x.r.PostForm.Get(name)
		}
	default:
		return nil, &problem{"The body must be a form or application/json.", "UNSUPPORTED_MEDIA_TYPE", http.StatusUnsupportedMediaType, ""}
	}
	if long := (*http.MaxBytesError)(nil); errors.As(err, &long) {
		return nil, &problem{fmt.Sprintf("The body is longer than %d bytes.", maxBody), "BODY_TOO_LARGE", http.StatusRequestEntityTooLarge, ""}
	}
	if err != nil {
		return nil, malformed("The body cannot be read.")
	}
	for name, value := range fields {
		if fields[name] = strings.TrimSpace(value); !printable(fields[name]) {
			return nil, malformed("The field %s is longer than %d characters, or holds what is no text.", name, maxText)
		}
	}
	return fields, nil
}

// maxText bounds a field, in characters. The longest key has 128.
const maxText = 500

// printable reports whether databases take s for a text.
func printable(s string) bool {
	return utf8.RuneCountInString(s) <= maxText && strings.ToValidUTF8(s, "\x00") == s && !strings.Contains(s, "\x00")
}

// redirect sends a browser to another page of ours, relative to this one, by GET.
func (x *exchange) redirect(to string) {
	x.w.Header().Set("Location", to)
	x.w.WriteHeader(http.StatusSeeOther)
}

// root is the way from the page to the console's first one, as a browser goes it: to it a %2F in the address is no slash.
func (x *exchange) root() string {
	if depth := strings.Count(strings.TrimPrefix(x.r.URL.EscapedPath(), "/"), "/"); depth > 0 {
		return strings.Repeat("../", depth)
	}
	return "./"
}

func (x *exchange) refuse(p *problem) {
	if p.allow != "" {
		x.w.Header().Set("Allow", p.allow)
	}
	x.answer(&answer{status: p.status, data: p, view: "problem"})
}

// page is what the templates get.
type page struct {
	Root, Who, View string
	Data            any
	Search          searched
	Kinds           []kind
	Pipeline        bool
	Notice, Alert   string
}

var (
	//go:embed console.html
	pageHTML  string
	templates = template.Must(template.New("console").Parse(pageHTML))
)

func (x *exchange) answer(a *answer) {
	var out bytes.Buffer
	var err error
	if x.json {
		x.w.Header().Set("Content-Type", "application/json")
		encoder := json.NewEncoder(&out)
		encoder.SetIndent("", "  ")
		err = encoder.Encode(a.data)
	} else {
		x.w.Header().Set("Content-Type", "text/html; charset=utf-8")
		p := page{Root: x.root(), Who: x.who, View: a.view, Data: a.data, Kinds: kinds, Pipeline: x.pipeline != nil, Notice: a.notice, Alert: a.alert}
		if a.found != nil {
			p.Search = *a.found
		}
		err = templates.ExecuteTemplate(&out, "page", p)
	}
	if err != nil { // no data of ours does that
		panic(fmt.Errorf("console: %w", err))
	}
	x.w.WriteHeader(cmp.Or(a.status, http.StatusOK))
	_, _ = x.w.Write(out.Bytes())
}

// pipelineView is the description of the bus.
type pipelineView struct {
	JSON json.RawMessage
	Text string
}

// MarshalJSON gives the description as it is.
func (p *pipelineView) MarshalJSON() ([]byte, error) { return p.JSON, nil }
