package vet

import (
	"go/ast"
	"go/types"
	"regexp"
	"strings"
)

// pools are what statements are sent to outside of a command's transaction, with the methods that send one or open a transaction.
var (
	pools = [][2]string{
		{pgxpool, "Pool"}, {pgxpool, "Conn"}, {pgx, "Conn"}, {"database/sql", "DB"}, {"database/sql", "Conn"},
	}
	reads   = map[string]bool{"Query": true, "QueryRow": true, "QueryContext": true, "QueryRowContext": true}
	writing = map[string]bool{
		"Exec": true, "ExecContext": true, "Begin": true, "BeginTx": true, "BeginFunc": true, "SendBatch": true, "CopyFrom": true,
		"Prepare": true, "PrepareContext": true,
	}
	// selects recognises a text that only reads.
	selects = regexp.MustCompile(`(?is)^\s*(select|values|show|explain|pragma)\b`)
	// ends recognises a text that begins or ends a transaction.
	ends = regexp.MustCompile(`(?is)^\s*(begin|commit|end|abort|start\s+transaction|prepare\s+transaction|rollback(\s+(work|transaction))?\s*(;|$))`)
)

func isPool(t types.Type) bool {
	for _, p := range pools {
		if t != nil && is(t, p[0], p[1]) {
			return true
		}
	}
	return false
}

// poolFindings: rule poolinatomic.
func poolFindings(s *source, h handler) (found []finding) {
	if h.mode != atomic {
		return nil
	}
	s.walk(h, func(n ast.Node) {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return
		}
		if sel, ok := ast.Unparen(call.Fun).(*ast.SelectorExpr); ok && isPool(s.pass.TypesInfo.TypeOf(sel.X)) {
			method := sel.Sel.Name
			if reads[method] && !(s.otherPool(sel.X) && s.onlyReads(call)) || writing[method] {
				found = append(found, finding{call.Pos(), method + " on the pool is not in the transaction of the command, which is Atomic; " +
					"use the handle that the store's DB function gives"})
			}
			return
		}
		if path, name := s.callee(call); path == pgx && (name == "BeginFunc" || name == "BeginTxFunc") && len(call.Args) > 1 {
			if isPool(s.pass.TypesInfo.TypeOf(call.Args[1])) {
				found = append(found, finding{call.Pos(), name + " on the pool opens a transaction beside that of the command, " +
					"which is Atomic; use the handle that the store's DB function gives"})
			}
			return
		} else if path == pgstore || path == sqlitestore {
			return
		}
		// A pool that is handed on as something to send statements to, as to code that sqlc generates.
		sig, ok := s.pass.TypesInfo.TypeOf(call.Fun).(*types.Signature)
		if !ok {
			return
		}
		for i, arg := range call.Args {
			if i < sig.Params().Len() && isPool(s.pass.TypesInfo.TypeOf(arg)) && sends(sig.Params().At(i).Type()) && !s.otherPool(arg) {
				found = append(found, finding{arg.Pos(), "the pool is handed on, and what is sent to it is not in the transaction " +
					"of the command, which is Atomic; hand on the handle that the store's DB function gives"})
			}
		}
	})
	return found
}

// sends reports whether t is an interface with a method that sends statements.
func sends(t types.Type) bool {
	return types.IsInterface(t) && (method(t, "Exec") != nil || method(t, "ExecContext") != nil)
}

// otherPool reports whether a pool is evidently not the store's: the package gives another one to the store.
func (s *source) otherPool(e ast.Expr) bool {
	object := s.object(e)
	return object != nil && len(s.stores) > 0 && !s.stores[object]
}

// onlyReads reports whether a statement is a constant text that only reads.
func (s *source) onlyReads(call *ast.CallExpr) bool {
	for _, arg := range call.Args {
		if text, ok := s.text(arg); ok {
			return selects.MatchString(text)
		}
	}
	return false
}

// goesOut gives what a call does over the network, or nothing.
func (s *source) goesOut(call *ast.CallExpr) string {
	path, name := s.callee(call)
	switch path {
	case "net/http":
		switch name {
		case "Get", "Head", "Post", "PostForm", "Client.Do", "Client.Get", "Client.Head", "Client.Post", "Client.PostForm",
			"RoundTripper.RoundTrip", "Transport.RoundTrip":
			return "http." + name
		}
	case "net/smtp":
		if name == "SendMail" || name == "Dial" {
			return "smtp." + name
		}
	case "net", "crypto/tls":
		if strings.HasPrefix(name, "Dial") {
			return path + "." + name
		}
	}
	return ""
}

// outsideFindings: rule outsideinatomic.
func outsideFindings(s *source, h handler) (found []finding) {
	if h.mode != atomic {
		return nil
	}
	s.walk(h, func(n ast.Node) {
		if call, ok := n.(*ast.CallExpr); ok {
			if what := s.goesOut(call); what != "" {
				found = append(found, finding{call.Pos(), what + " in the handler of an Atomic command cannot be rolled back with it; " +
					"make the command Leased"})
			}
		}
	})
	return found
}

// downstreamFindings: rule lostdownstream.
func downstreamFindings(s *source, h handler) (found []finding) {
	if h.mode != leased {
		return nil
	}
	asked, made, written := false, false, false // for a key; a request; a request of a method that is not GET or HEAD
	s.walk(h, func(n ast.Node) {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return
		}
		path, name := s.callee(call)
		switch {
		case path == idempotency && name == "DownstreamKey":
			asked = true
		case path == "net/http" && (name == "NewRequest" || name == "NewRequestWithContext"):
			made = true
			method, ok := s.text(call.Args[len(call.Args)-3])
			written = written || !ok || method != "GET" && method != "HEAD" && method != ""
		case path == "net/http":
			what := s.goesOut(call)
			if what != "" && !strings.HasSuffix(what, "Get") && !strings.HasSuffix(what, "Head") {
				found = append(found, finding{call.Pos(), what + " in the handler of a Leased command without idempotency.DownstreamKey: " +
					"the other side cannot tell a second attempt from new work"})
			}
		}
	})
	if asked || made && !written {
		return nil
	}
	return found
}

// commitFindings: rule commitinhandler.
func commitFindings(s *source, h handler) (found []finding) {
	opens := false
	s.walk(h, func(n ast.Node) {
		if call, ok := n.(*ast.CallExpr); ok {
			path, name := s.callee(call)
			opens = opens || name == "InTx" && (path == pgstore || path == sqlitestore)
		}
	})
	s.walk(h, func(n ast.Node) {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return
		}
		sel, ok := ast.Unparen(call.Fun).(*ast.SelectorExpr)
		if !ok {
			return
		}
		switch method := sel.Sel.Name; method {
		case "Commit", "Rollback":
			t := s.pass.TypesInfo.TypeOf(sel.X)
			if t == nil || !is(t, pgx, "Tx") && !is(t, "database/sql", "Tx") {
				return
			}
			for _, value := range s.values[s.object(sel.X)] {
				from, ok := ast.Unparen(value).(*ast.CallExpr)
				if !ok {
					continue
				}
				begin, _ := ast.Unparen(from.Fun).(*ast.SelectorExpr)
				switch {
				case s.given(sel.X):
					found = append(found, finding{call.Pos(), method + " in a handler: the bus ends the transaction of the command, together with its record"})
				case method == "Commit" && !opens && begin != nil && isPool(s.pass.TypesInfo.TypeOf(begin.X)):
					found = append(found, finding{call.Pos(), "Commit in a handler: the rows are there and the record of the command is not yet; " +
						"write through the store's DB or InTx"})
				}
			}
		case "Exec", "ExecContext", "Query", "QueryContext", "QueryRow", "QueryRowContext":
			for _, arg := range call.Args {
				if text, ok := s.text(arg); ok {
					if ends.MatchString(text) {
						found = append(found, finding{call.Pos(), "a handler sends BEGIN, COMMIT or ROLLBACK as text: " +
							"the bus ends the transaction of the command"})
					}
					break
				}
			}
		}
	})
	return found
}

// given reports whether a variable is the transaction that pgstore.Tx gives. A savepoint is not.
func (s *source) given(e ast.Expr) bool {
	for _, value := range s.values[s.object(e)] {
		if call, ok := ast.Unparen(value).(*ast.CallExpr); ok {
			if path, name := s.callee(call); path == pgstore && name == "Tx" {
				return true
			}
		}
	}
	return false
}

// swallowFindings: rule swallowederror.
func swallowFindings(s *source, h handler) (found []finding) {
	if h.mode != atomic {
		return nil
	}
	dropped := func(e ast.Expr) {
		call, ok := ast.Unparen(e).(*ast.CallExpr)
		if !ok {
			return
		}
		sel, ok := ast.Unparen(call.Fun).(*ast.SelectorExpr)
		if !ok {
			return
		}
		method := sel.Sel.Name
		on := sel.X
		if method == "Scan" {
			row, ok := ast.Unparen(sel.X).(*ast.CallExpr)
			if !ok {
				return
			}
			query, ok := ast.Unparen(row.Fun).(*ast.SelectorExpr)
			if !ok || query.Sel.Name != "QueryRow" && query.Sel.Name != "QueryRowContext" {
				return
			}
			on = query.X
		} else if method != "Exec" && method != "ExecContext" && method != "CopyFrom" {
			return
		}
		t := s.pass.TypesInfo.TypeOf(on)
		if t == nil || !is(t, pgstore, "DBTX") && !is(t, sqlitestore, "DBTX") && !s.given(on) {
			return
		}
		found = append(found, finding{call.Pos(), "the error of " + method + " is dropped, and the record of the command would say " +
			"that it was done; return the error"})
	}
	s.walk(h, func(n ast.Node) {
		switch n := n.(type) {
		case *ast.ExprStmt:
			dropped(n.X)
		case *ast.GoStmt:
			dropped(n.Call)
		case *ast.DeferStmt:
			dropped(n.Call)
		case *ast.AssignStmt:
			if id, ok := n.Lhs[len(n.Lhs)-1].(*ast.Ident); ok && id.Name == "_" && len(n.Rhs) == 1 {
				dropped(n.Rhs[0])
			}
		}
	})
	return found
}
