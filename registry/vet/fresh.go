package vet

import (
	"go/ast"
	"go/token"
	"go/types"
	"net/http"
	"reflect"
	"strings"

	"golang.org/x/tools/go/analysis"
)

// random are functions that give something else in every call.
var random = map[string][]string{
	"github.com/google/uuid":             {"New", "NewString", "NewRandom", "NewUUID", "NewV6", "NewV7"},
	"github.com/gofrs/uuid/v5":           {"NewV1", "NewV4", "NewV6", "NewV7"},
	"github.com/oklog/ulid":              {"Make", "New", "MustNew"},
	"github.com/oklog/ulid/v2":           {"Make", "New", "MustNew"},
	"github.com/ThreeDotsLabs/watermill": {"NewUUID", "NewShortUUID", "NewULID"},
	requestctx:                           {"NewID"},
	"crypto/rand":                        {"Text", "Int"},
	"math/rand":                          {"Int", "Int63", "Int63n", "Intn", "Uint32", "Uint64"},
	"math/rand/v2":                       {"Int", "Int64", "Int64N", "IntN", "N", "Uint32", "Uint64", "Uint64N"},
}

// fresh reports whether an expression is another one in every call, as far as that can be seen in the function.
func (s *source) fresh(e ast.Expr) bool { return s.follow(e, map[types.Object]bool{}, s.freshCall) }

// now reports whether an expression is the current time.
func (s *source) now(e ast.Expr) bool { return s.follow(e, map[types.Object]bool{}, s.nowCall) }

type seenVars = map[types.Object]bool

func (s *source) follow(e ast.Expr, seen seenVars, of func(*ast.CallExpr, seenVars) bool) bool {
	switch e := ast.Unparen(e).(type) {
	case *ast.Ident:
		v, ok := s.pass.TypesInfo.ObjectOf(e).(*types.Var)
		if !ok || seen[v] || v.Parent() == s.pass.Pkg.Scope() {
			return false
		}
		seen[v] = true
		for _, value := range s.values[v] {
			if s.follow(value, seen, of) {
				return true
			}
		}
	case *ast.BinaryExpr:
		return e.Op == token.ADD && (s.follow(e.X, seen, of) || s.follow(e.Y, seen, of))
	case *ast.UnaryExpr:
		return e.Op == token.AND && s.follow(e.X, seen, of)
	case *ast.SliceExpr:
		return s.follow(e.X, seen, of)
	case *ast.CallExpr:
		if s.pass.TypesInfo.Types[e.Fun].IsType() && len(e.Args) == 1 {
			return s.follow(e.Args[0], seen, of)
		}
		return of(e, seen)
	}
	return false
}

func (s *source) freshCall(call *ast.CallExpr, seen seenVars) bool {
	path, name := s.callee(call)
	for _, of := range random[path] {
		if name == of {
			return true
		}
	}
	sel, _ := ast.Unparen(call.Fun).(*ast.SelectorExpr)
	switch {
	case path == "time":
		switch name {
		case "Time.Unix", "Time.UnixMilli", "Time.UnixMicro", "Time.UnixNano", "Time.String":
			return s.follow(sel.X, seen, s.nowCall)
		case "Time.Format": // by the day it may well be the intent: one report for each day
			layout, ok := s.text(call.Args[0])
			return ok && strings.Contains(layout, "05") && s.follow(sel.X, seen, s.nowCall)
		}
	case path == "github.com/google/uuid" && name == "Must", path == "fmt" && strings.HasPrefix(name, "Sprint"),
		path == "strings", path == "strconv", path == "encoding/hex", path == "encoding/base64":
		for _, arg := range call.Args {
			if s.follow(arg, seen, s.freshCall) {
				return true
			}
		}
	case sel != nil && strings.HasSuffix(name, ".String"): // of a UUID
		return s.follow(sel.X, seen, s.freshCall)
	}
	return false
}

func (s *source) nowCall(call *ast.CallExpr, seen seenVars) bool {
	switch path, name := s.callee(call); {
	case path != "time":
	case name == "Now":
		return true
	case name == "Time.UTC", name == "Time.Local", name == "Time.In", name == "Time.Add", name == "Time.AddDate":
		return s.follow(ast.Unparen(call.Fun).(*ast.SelectorExpr).X, seen, s.nowCall)
	}
	return false
}

// runFreshKey: rule freshkey.
func runFreshKey(pass *analysis.Pass) (any, error) {
	s := pass.ResultOf[facts].(*source)
	report := func(e ast.Expr, stack []ast.Node, what string) {
		if !s.inTest(e.Pos()) && s.fresh(e) && !s.stored(e, stack) {
			pass.Reportf(e.Pos(), "%s is made up here, so every attempt is new work; take the sender's, or refuse what has none", what)
		}
	}
	field := func(t types.Type, name string) string {
		switch {
		case t == nil || name != "ID":
		case is(t, msgedge, "Message"):
			return "the id of the message"
		case is(t, watermill, "Out"):
			return "the id of the message that is sent"
		}
		return ""
	}
	sinks := []ast.Node{(*ast.CallExpr)(nil), (*ast.CompositeLit)(nil), (*ast.AssignStmt)(nil)}
	s.inspect.WithStack(sinks, func(n ast.Node, push bool, stack []ast.Node) bool {
		if !push {
			return true
		}
		switch n := n.(type) {
		case *ast.CallExpr:
			switch path, name := s.callee(n); {
			case path == requestctx && name == "ParseKey" && len(n.Args) == 1 && (s.serves(stack) || s.dispatches(stack)):
				report(n.Args[0], stack, "the idempotency key")
			case path == "net/http" && (name == "Header.Set" || name == "Header.Add") && len(n.Args) == 2 && s.serves(stack):
				if header, ok := s.text(n.Args[0]); ok && http.CanonicalHeaderKey(header) == "Idempotency-Key" {
					report(n.Args[1], stack, "the idempotency key")
				}
			case path == "github.com/ThreeDotsLabs/watermill/message" && name == "NewMessage" && len(n.Args) == 2:
				if decl := outermost(stack); decl != nil && decl.Name.Name == "Unmarshal" {
					report(n.Args[0], stack, "the id of the message")
				}
			}
		case *ast.CompositeLit:
			for _, element := range n.Elts {
				if pair, ok := element.(*ast.KeyValueExpr); ok {
					if key, ok := pair.Key.(*ast.Ident); ok {
						if what := field(pass.TypesInfo.TypeOf(n), key.Name); what != "" {
							report(pair.Value, stack, what)
						}
					}
				}
			}
		case *ast.AssignStmt:
			for i, left := range n.Lhs {
				if sel, ok := left.(*ast.SelectorExpr); ok && len(n.Lhs) == len(n.Rhs) {
					if what := field(pass.TypesInfo.TypeOf(sel.X), sel.Sel.Name); what != "" {
						report(n.Rhs[i], stack, what)
					}
				}
			}
		}
		return true
	})
	return nil, nil
}

// outermost is the declaration that a node stands in.
func outermost(stack []ast.Node) *ast.FuncDecl {
	for _, n := range stack {
		if decl, ok := n.(*ast.FuncDecl); ok {
			return decl
		}
	}
	return nil
}

// serves reports whether a node stands in a function that is given a request or a message, or that handles a command.
func (s *source) serves(stack []ast.Node) bool {
	for _, n := range stack {
		sig := s.signature(n)
		if sig == nil {
			continue
		}
		if s.handlerMode(sig) != unmarked {
			return true
		}
		for v := range sig.Params().Variables() {
			t := v.Type()
			if is(t, "net/http", "ResponseWriter") || is(t, "github.com/labstack/echo/v4", "Context") || is(t, msgedge, "Message") ||
				is(t, "github.com/ThreeDotsLabs/watermill/message", "Message") {
				return true
			}
		}
	}
	return false
}

func (s *source) signature(n ast.Node) *types.Signature {
	switch n := n.(type) {
	case *ast.FuncDecl:
		if f, ok := s.pass.TypesInfo.Defs[n.Name].(*types.Func); ok {
			return f.Signature()
		}
	case *ast.FuncLit:
		sig, _ := s.pass.TypesInfo.TypeOf(n).(*types.Signature)
		return sig
	}
	return nil
}

// dispatches reports whether the function that a node stands in uses a key as well, so that nobody can have kept it.
func (s *source) dispatches(stack []ast.Node) bool {
	return s.calls(stack, func(call *ast.CallExpr) bool {
		path, name := s.callee(call)
		return path == requestctx && name == "New" || path == bus && name == "Send"
	})
}

// stored reports whether a fresh value is given to something that keeps it, so that a later attempt may find it again.
func (s *source) stored(e ast.Expr, stack []ast.Node) bool {
	object := s.object(e)
	if object == nil {
		return false
	}
	return s.calls(stack, func(call *ast.CallExpr) bool {
		id := name(call.Fun)
		if id == nil {
			return false
		}
		for _, keeps := range []string{"Exec", "Query", "Save", "Store", "Put", "Insert", "Create", "Write"} {
			if strings.HasPrefix(strings.ToLower(id.Name), strings.ToLower(keeps)) {
				for _, arg := range call.Args {
					if s.object(arg) == object {
						return true
					}
				}
			}
		}
		return false
	})
}

// calls reports whether the declaration that a node stands in has such a call.
func (s *source) calls(stack []ast.Node, such func(*ast.CallExpr) bool) (found bool) {
	if decl := outermost(stack); decl != nil {
		ast.Inspect(decl, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			found = found || ok && such(call)
			return !found
		})
	}
	return found
}

// runUnstableField: rule unstablefield.
func runUnstableField(pass *analysis.Pass) (any, error) {
	s := pass.ResultOf[facts].(*source)
	reported := map[token.Pos]bool{}
	s.inspect.WithStack([]ast.Node{(*ast.CallExpr)(nil)}, func(n ast.Node, push bool, stack []ast.Node) bool {
		call := n.(*ast.CallExpr)
		if path, name := s.callee(call); !push || path != bus || name != "Send" || len(call.Args) != 3 || s.inTest(call.Pos()) {
			return true
		}
		for _, around := range stack { // what an Atomic handler sends runs under its own record and is not compared
			if sig := s.signature(around); sig != nil && s.handlerMode(sig) == atomic {
				return true
			}
		}
		cmd := ast.Unparen(call.Args[2])
		t := pass.TypesInfo.TypeOf(cmd)
		if t == nil || s.commandMode(t) == unmarked || method(types.Unalias(t), "Normalize") != nil {
			return true
		}
		check := func(name string, value ast.Expr) {
			if !reported[value.Pos()] && (s.fresh(value) || s.now(value)) && fingerprinted(t, name) {
				reported[value.Pos()] = true
				pass.Reportf(value.Pos(), `%s is another one in every attempt, so the second is refused as a conflict; `+
					`set it in the handler, or tag it idempotency:"-"`, name)
			}
		}
		literal := func(e ast.Expr) {
			e = ast.Unparen(e)
			if and, ok := e.(*ast.UnaryExpr); ok {
				e = ast.Unparen(and.X)
			}
			lit, ok := e.(*ast.CompositeLit)
			if !ok {
				return
			}
			for i, element := range lit.Elts {
				if pair, ok := element.(*ast.KeyValueExpr); ok {
					if key, ok := pair.Key.(*ast.Ident); ok {
						check(key.Name, pair.Value)
					}
				} else if st := structOf(t); st != nil && i < st.NumFields() {
					check(st.Field(i).Name(), element)
				}
			}
		}
		literal(cmd)
		id, ok := cmd.(*ast.Ident)
		if !ok {
			return true
		}
		object := pass.TypesInfo.ObjectOf(id)
		for _, value := range s.values[object] {
			literal(value)
		}
		if decl := outermost(stack); decl != nil {
			ast.Inspect(decl, func(n ast.Node) bool {
				if set, ok := n.(*ast.AssignStmt); ok && len(set.Lhs) == len(set.Rhs) {
					for i, left := range set.Lhs {
						if sel, ok := left.(*ast.SelectorExpr); ok && s.object(sel.X) == object {
							check(sel.Sel.Name, set.Rhs[i])
						}
					}
				}
				return true
			})
		}
		return true
	})
	return nil, nil
}

func structOf(t types.Type) *types.Struct {
	if p, ok := types.Unalias(t).(*types.Pointer); ok {
		t = p.Elem()
	}
	st, _ := t.Underlying().(*types.Struct)
	return st
}

// fingerprinted reports whether a field of a command counts in its fingerprint.
func fingerprinted(t types.Type, field string) bool {
	st := structOf(t)
	for i := 0; st != nil && i < st.NumFields(); i++ {
		if st.Field(i).Name() == field {
			return reflect.StructTag(st.Tag(i)).Get("idempotency") != "-"
		}
	}
	return false
}
