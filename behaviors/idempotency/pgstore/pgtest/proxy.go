package pgtest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Action is what a [Fault] does to the batch that it meets.
//
// A batch is what a client sends before it waits: one simple query, or everything up to a Sync (or Flush) of the extended
// protocol. It crosses the wire whole or not at all: where an upsert and COMMIT travel together in a pgx.Batch, a fault that
// meets the COMMIT takes the upsert with it.
type Action int

// The actions. Those that hold need [Fault.Release]. Fired always comes before the client can notice anything.
const (
	// Drop: the batch never reaches the server, and the connection is cut on both sides. Fired when the batch is thrown
	// away, Done after the cut. The server needs a moment to see the cut and to roll back.
	Drop Action = iota + 1
	// DropAnswer: the server executes the batch, its answer is lost, and the connection is cut on both sides. Fired when
	// the batch is executed, Done after the cut.
	DropAnswer
	// HoldAnswer: the server executes the batch, and the client has its answer when the test releases it. Fired when the
	// batch is executed, Done when the answer is sent on.
	HoldAnswer
	// Hold: the batch reaches the server when the test releases it, even if the client has gone meanwhile, as a packet on
	// its way would. Fired when the batch is held, Done when the server has answered.
	Hold
	// Delay: Hold, and the connection to the client is cut at once. Fired when the batch is held, Done when the server
	// has answered.
	Delay
)

// String is the action's name.
func (a Action) String() string {
	switch a {
	case Drop:
		return "Drop"
	case DropAnswer:
		return "DropAnswer"
	case HoldAnswer:
		return "HoldAnswer"
	case Hold:
		return "Hold"
	case Delay:
		return "Delay"
	}
	return fmt.Sprintf("Action(%d)", int(a))
}

// Fault is one misfortune. It happens once, to the first batch with a statement that matches.
type Fault struct {
	// Match says which statement is meant, by its text; [IsCommit] and [Contains] are two such functions. It sees a
	// prepared statement when it is executed, not when it is prepared. It must be safe for concurrent use.
	Match func(sql string) bool
	// Action is what happens.
	Action Action
	// Release ends HoldAnswer, Hold and Delay when it is closed, or once by a value sent. The others do without.
	Release <-chan struct{}
}

// IsCommit matches a statement that commits, alone or among others in a simple query.
func IsCommit(sql string) bool { return commit.MatchString(sql) }

var commit = regexp.MustCompile(`(?i)(^|;)\s*(commit|end)(\s+(work|transaction))?\s*(;|$)`)

// Contains matches a statement whose text contains part.
func Contains(part string) func(sql string) bool {
	return func(sql string) bool { return strings.Contains(sql, part) }
}

// Armed is a fault that waits for its statement or has met it. The moments of [Armed.Fired] and [Armed.Done] are those that
// its [Action] says; where the connection ends before, they come then, and at the latest with the end of the test.
type Armed struct {
	fault       Fault
	fired, done chan struct{}
	fireOnce    sync.Once
	doneOnce    sync.Once
}

// Fired is closed when the fault has taken effect.
func (a *Armed) Fired() <-chan struct{} { return a.fired }

// Done is closed when it is over.
func (a *Armed) Done() <-chan struct{} { return a.done }

func (a *Armed) fire() { a.fireOnce.Do(func() { close(a.fired) }) }

func (a *Armed) finish() {
	a.fire()
	a.doneOnce.Do(func() { close(a.done) })
}

func (a *Armed) does(actions ...Action) bool {
	return a != nil && slices.Contains(actions, a.fault.Action)
}

// Proxy is a wire to the test's PostgreSQL that a test can cut, stop and count. Make it with [Database.Proxy]. It speaks to
// both sides without TLS. All its methods are safe for concurrent use.
type Proxy struct {
	database *Database
	listener net.Listener
	server   *pgconn.Config
	wg       sync.WaitGroup

	mu          sync.Mutex
	closed      bool
	refuse      bool
	links       map[*link]struct{}
	armed       []*Armed
	statements  []string
	turnarounds int
}

// Proxy puts a new proxy in front of the server, for connections to this Database. It ends with the test.
func (d *Database) Proxy() *Proxy {
	d.tb.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		d.tb.Fatalf("pgtest: start a proxy: %v", err)
	}
	p := &Proxy{database: d, listener: listener, server: &d.PoolConfig().ConnConfig.Config, links: map[*link]struct{}{}}
	p.wg.Add(1)
	go p.accept()
	d.tb.Cleanup(p.close)
	return p
}

// Addr is the address that the proxy listens on, a port of 127.0.0.1.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// URL is the connection string of the schema by way of the proxy, for a child process. It is always a URL, and it holds
// the server's password.
func (p *Proxy) URL() string { return through(p.server, p.Addr()) }

// PoolConfig is a new config for [NewPool] by way of the proxy. Its ShouldPing is off, because a pool that pings a connection
// before it lends it would spoil the count of turnarounds, now and then.
func (p *Proxy) PoolConfig() *pgxpool.Config {
	p.database.tb.Helper()
	config, err := pgxpool.ParseConfig(p.URL())
	if err != nil {
		p.database.tb.Fatalf("pgtest: the proxy's address: %v", err)
	}
	config.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	return config
}

// Arm lays out a fault. Of several that match, the one armed first happens. A fault without Match, without an action or,
// where the action holds, without Release is a mistake of the test: Arm calls Fatalf, so call it from the test's own
// goroutine.
func (p *Proxy) Arm(fault Fault) *Armed {
	p.database.tb.Helper()
	if fault.Match == nil || fault.Action < Drop || fault.Action > Delay || (fault.Action >= HoldAnswer && fault.Release == nil) {
		p.database.tb.Fatalf("pgtest: a fault needs Match and Action, and Release where it holds: %v", fault.Action)
	}
	a := &Armed{fault: fault, fired: make(chan struct{}), done: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed = append(p.armed, a)
	return a
}

// Turnarounds is how many times since the last Reset a client waited for an answer and got it: one for each simple query,
// Sync and Flush that the server has answered, logging in left out. That an answer was then lost or held does not
// matter. When the client has the answer, it is counted.
func (p *Proxy) Turnarounds() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.turnarounds
}

// Statements is the texts of the statements that clients have sent for execution since the last Reset, in the order in which
// they came to the proxy, those that a fault dropped included. A prepared statement appears when it is executed.
func (p *Proxy) Statements() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.statements)
}

// Reset sets Turnarounds to zero and empties Statements.
func (p *Proxy) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.turnarounds, p.statements = 0, nil
}

// CutAll cuts all connections now, on both sides, and with them what a fault holds. New ones can be made at once.
func (p *Proxy) CutAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.cut()
	}
}

// Refuse says whether new connections are cut as soon as they come in. With [Proxy.CutAll] after it, the server is away.
func (p *Proxy) Refuse(refuse bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = refuse
}

func (p *Proxy) close() {
	p.mu.Lock()
	p.closed = true
	for l := range p.links {
		l.cut()
	}
	for _, a := range p.armed {
		a.finish()
	}
	p.mu.Unlock()
	_ = p.listener.Close()
	p.wg.Wait()
}

func (p *Proxy) accept() {
	defer p.wg.Done()
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.wg.Add(1)
		go func() {
			defer p.wg.Done()
			p.serve(client)
		}()
	}
}

// serve is the life of one connection.
func (p *Proxy) serve(client net.Conn) {
	p.mu.Lock()
	away := p.closed || p.refuse
	p.mu.Unlock()
	if away {
		reset(client)
		return
	}
	network, address := pgconn.NetworkAddress(p.server.Host, p.server.Port)
	server, err := net.Dial(network, address)
	if err != nil {
		reset(client)
		return
	}
	l := &link{proxy: p, client: client, server: server, gone: make(chan struct{}),
		statements: map[string]string{}, portals: map[string]string{}}
	p.mu.Lock()
	if p.closed || p.refuse {
		p.mu.Unlock()
		reset(client)
		_ = server.Close()
		return
	}
	p.links[l] = struct{}{}
	p.mu.Unlock()

	answers := make(chan struct{})
	go func() {
		defer close(answers)
		l.fromServer()
	}()
	l.fromClient()
	l.cut()
	<-answers
	l.settle()
	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
}

// reset ends a connection the way a host does that has nobody listening.
func reset(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

// meets notes the statements of a batch and returns the fault that one of them meets, which is then spent.
func (p *Proxy) meets(statements []string) *Armed {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.statements = append(p.statements, statements...)
	for i, a := range p.armed {
		if slices.ContainsFunc(statements, a.fault.Match) {
			p.armed = slices.Delete(p.armed, i, i+1)
			return a
		}
	}
	return nil
}

func (p *Proxy) turned() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.turnarounds++
}

// link is one client's connection and the proxy's own one to the server for it.
type link struct {
	proxy          *Proxy
	client, server net.Conn
	gone           chan struct{} // closed by cut
	once           sync.Once

	// What the client has prepared and bound, by name. Only fromClient uses them.
	statements, portals map[string]string

	mu      sync.Mutex
	waiting []*exchange // what the server has not answered yet, in order
}

// exchange is something that the server answers with one ReadyForQuery.
type exchange struct {
	login bool
	fault *Armed
}

// cut ends both connections.
func (l *link) cut() {
	l.once.Do(func() {
		close(l.gone)
		_ = l.client.Close()
		_ = l.server.Close()
	})
}

// settle ends the faults whose answer will not come any more.
func (l *link) settle() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, x := range l.waiting {
		if x.fault != nil {
			x.fault.finish()
		}
	}
}

// expect puts an exchange at the end of those that wait for an answer. It must be there before the server can answer.
func (l *link) expect(x *exchange) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = append(l.waiting, x)
}

// answering is the exchange that the server's next message belongs to, or an empty one, and its fault.
func (l *link) answering() (*exchange, *Armed) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) == 0 {
		return &exchange{login: true}, nil
	}
	return l.waiting[0], l.waiting[0].fault
}

func (l *link) answered() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) > 0 {
		l.waiting = l.waiting[1:]
	}
}

// afflict gives an exchange a fault. One that has a fault already keeps it, which can only be where a Flush divides it.
func (l *link) afflict(x *exchange, fault *Armed) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if x.fault == nil {
		x.fault = fault
		return
	}
	fault.finish()
}

// fromClient reads what the client sends and hands it on, batch by batch.
func (l *link) fromClient() {
	in := bufio.NewReader(l.client)
	if !l.login(in) {
		return
	}
	var (
		batch    []byte    // not handed on yet
		executes []string  // the statements in it
		x        *exchange // what the server has had a part of, where a Flush divides a batch
		last     *Armed    // the last fault met
	)
	for {
		kind, frame, err := readFrame(in)
		if err != nil {
			// The client is gone. What a fault concerns still arrives and is executed, as it would be on a network.
			if last != nil {
				executed := last.fired
				if last.does(Hold, Delay) {
					executed = last.done
				}
				select {
				case <-executed:
				case <-l.gone:
				}
			}
			return
		}
		batch = append(batch, frame...)
		if sql, ok := l.note(kind, frame[5:]); ok {
			executes = append(executes, sql)
		}
		ready := kind == 'Q' || kind == 'S' || kind == 'F' // the server will say ReadyForQuery
		switch kind {
		case 'P', 'B', 'D', 'E', 'C':
			continue // more of the batch comes
		}

		if x == nil && (ready || kind == 'H') {
			x = &exchange{}
			l.expect(x)
		}
		if fault := l.proxy.meets(executes); fault != nil {
			l.afflict(x, fault)
			last = fault
			switch fault.fault.Action {
			case Drop:
				fault.fire()
				return // serve cuts, and settle finishes the fault
			case Hold, Delay:
				fault.fire()
				if fault.does(Delay) {
					_ = l.client.Close()
				}
				select {
				case <-fault.fault.Release:
				case <-l.gone:
					return
				}
			}
		}
		if kind == 'H' {
			l.proxy.turned() // before it is sent: the answer may be with the client before this goes on
		}
		if _, err := l.server.Write(batch); err != nil {
			return
		}
		if ready {
			x = nil
		}
		batch, executes = nil, nil
	}
}

// login does what comes before the first ordinary frame, and reports whether there will be one.
func (l *link) login(in *bufio.Reader) bool {
	const cancelRequest, sslRequest, gssRequest = 80877102, 80877103, 80877104
	for {
		head, err := in.Peek(8)
		if err != nil {
			return false
		}
		size := binary.BigEndian.Uint32(head)
		if size < 8 || size > 1<<16 {
			return false
		}
		frame := make([]byte, size)
		if _, err := io.ReadFull(in, frame); err != nil {
			return false
		}
		switch binary.BigEndian.Uint32(frame[4:]) {
		case sslRequest, gssRequest:
			if _, err := l.client.Write([]byte{'N'}); err != nil {
				return false
			}
		case cancelRequest:
			// The server takes it and closes the connection without a word.
			if _, err := l.server.Write(frame); err == nil {
				<-l.gone
			}
			return false
		default:
			l.expect(&exchange{login: true})
			_, err := l.server.Write(frame)
			return err == nil
		}
	}
}

// note keeps the names that a message of the client gives, and returns the text of the statement that it executes.
func (l *link) note(kind byte, body []byte) (sql string, executes bool) {
	switch kind {
	case 'Q':
		var m pgproto3.Query
		if m.Decode(body) == nil {
			return m.String, true
		}
	case 'P':
		var m pgproto3.Parse
		if m.Decode(body) == nil {
			l.statements[m.Name] = m.Query
		}
	case 'B':
		var m pgproto3.Bind
		if m.Decode(body) == nil {
			l.portals[m.DestinationPortal] = l.statements[m.PreparedStatement]
		}
	case 'E':
		var m pgproto3.Execute
		if m.Decode(body) == nil {
			return l.portals[m.Portal], true
		}
	}
	return "", false
}

// fromServer reads what the server answers and hands it on, or not.
func (l *link) fromServer() {
	// When the server is gone, so is the client's connection.
	defer l.cut()
	in := bufio.NewReader(l.server)
	// A client that is gone does not hear the answer, and that is no reason not to read it: errors of writes are nothing.
	out := bufio.NewWriter(l.client)
	defer out.Flush()
	var kept []byte
	for {
		kind, frame, err := readFrame(in)
		if err != nil {
			return
		}
		x, fault := l.answering()
		end := kind == 'Z'
		if end && !x.login {
			l.proxy.turned()
		}
		if fault.does(DropAnswer, HoldAnswer) {
			kept = append(kept, frame...)
			if !end {
				continue
			}
			fault.fire()
			if fault.does(DropAnswer) {
				l.cut()
				return // and settle finishes the fault
			}
			select {
			case <-fault.fault.Release:
			case <-l.gone:
				return
			}
			frame, kept = kept, nil
		}
		_, _ = out.Write(frame)
		if in.Buffered() == 0 || end {
			_ = out.Flush()
		}
		if end {
			l.answered()
			if fault != nil {
				fault.finish()
			}
		}
	}
}

// readFrame reads one message: a byte for its kind, four for its length, its body.
func readFrame(in *bufio.Reader) (kind byte, frame []byte, err error) {
	head, err := in.Peek(5)
	if err != nil {
		return 0, nil, err
	}
	kind = head[0]
	size := binary.BigEndian.Uint32(head[1:])
	if size < 4 || size > 1<<30 {
		return 0, nil, fmt.Errorf("pgtest: a frame of %d bytes", size)
	}
	// The buffer grows with what comes, not with what a client that sends nonsense announces.
	buffer := bytes.NewBuffer(make([]byte, 0, min(size, 1<<16)+bytes.MinRead))
	_, err = io.CopyN(buffer, in, 1+int64(size))
	return kind, buffer.Bytes(), err
}
