package vet

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/inspect"
	"golang.org/x/tools/go/ast/inspector"
	"golang.org/x/tools/go/types/typeutil"
)

const (
	module      = "github.com/tekil-go/tekil/"
	registry    = module + "registry"
	bus         = module + "bus"
	requestctx  = module + "requestctx"
	idempotency = module + "behaviors/idempotency"
	pgstore     = idempotency + "/pgstore"
	sqlitestore = idempotency + "/sqlitestore"
	msgedge     = requestctx + "/msgedge"
	watermill   = msgedge + "/watermilledge"
	pgx         = "github.com/jackc/pgx/v5"
	pgxpool     = pgx + "/pgxpool"
)

// depth is how many calls are followed from a handler.
const depth = 2

// facts reads a package once for all rules: who handles which marked command, and what the rules of handlers find. A handler that is
// registered in another package than its own is judged where its text is, and the findings travel as a fact to where it is registered.
var facts = &analysis.Analyzer{
	Name:       "tekilfacts",
	Doc:        "find the handlers of marked commands",
	Requires:   []*analysis.Analyzer{inspect.Analyzer},
	FactTypes:  []analysis.Fact{new(modeFact), new(foundFact)},
	ResultType: reflect.TypeFor[*source](),
	Run:        func(pass *analysis.Pass) (any, error) { return read(pass), nil },
}

// mode is how a command is run.
type mode int

const (
	unmarked mode = iota
	unclear       // marked, and its policy cannot be read
	atomic
	leased
)

// modeFact is what the method Idempotency of a command says.
type modeFact struct{ Mode mode }

func (*modeFact) AFact() {}
func (f *modeFact) String() string {
	return [...]string{"unmarked", "unclear", "atomic", "leased"}[f.Mode]
}

// foundFact holds the findings in a function that has the form of a handler, in the order of the text of rule and message.
type foundFact struct{ Found []foundIn }

type foundIn struct{ Rule, Message string }

func (*foundFact) AFact()           {}
func (f *foundFact) String() string { return fmt.Sprintf("%d findings", len(f.Found)) }

// finding is a diagnostic of a rule.
type finding struct {
	pos token.Pos
	msg string
}

// source is a package that was read.
type source struct {
	pass    *analysis.Pass
	inspect *inspector.Inspector
	decls   map[*types.Func]*ast.FuncDecl
	values  map[types.Object][]ast.Expr // what is assigned to a variable; a call with several results stands for each of them
	stores  map[types.Object]bool       // pools that are given to a store
	found   map[string][]finding
	seen    map[string]bool
}

// handler is a function that runs a command.
type handler struct {
	mode mode
	body ast.Node
}

// rules are those of handlers, by name.
var rules = map[string]func(*source, handler) []finding{
	"poolinatomic": poolFindings, "outsideinatomic": outsideFindings, "commitinhandler": commitFindings,
	"lostdownstream": downstreamFindings, "swallowederror": swallowFindings,
}

func handlerRule(name, doc string) *analysis.Analyzer {
	return &analysis.Analyzer{
		Name: name, URL: manual + name, Doc: doc, Requires: []*analysis.Analyzer{facts},
		Run: func(pass *analysis.Pass) (any, error) {
			found := pass.ResultOf[facts].(*source).found[name]
			slices.SortStableFunc(found, func(a, b finding) int { return cmp.Compare(a.pos, b.pos) })
			for _, f := range found {
				pass.Report(analysis.Diagnostic{Pos: f.pos, Message: f.msg})
			}
			return nil, nil
		},
	}
}

func read(pass *analysis.Pass) *source {
	s := &source{
		pass: pass, inspect: pass.ResultOf[inspect.Analyzer].(*inspector.Inspector),
		decls: map[*types.Func]*ast.FuncDecl{}, values: map[types.Object][]ast.Expr{}, stores: map[types.Object]bool{},
		found: map[string][]finding{}, seen: map[string]bool{},
	}
	if !s.uses() {
		return s
	}
	var registered []*ast.CallExpr
	s.inspect.Preorder([]ast.Node{(*ast.FuncDecl)(nil), (*ast.CallExpr)(nil), (*ast.AssignStmt)(nil), (*ast.ValueSpec)(nil)}, func(n ast.Node) {
		switch n := n.(type) {
		case *ast.FuncDecl:
			if f, ok := pass.TypesInfo.Defs[n.Name].(*types.Func); ok {
				s.decls[f] = n
			}
		case *ast.AssignStmt:
			for i, left := range n.Lhs {
				s.assigned(left, n.Rhs, i)
			}
		case *ast.ValueSpec:
			for i, left := range n.Names {
				s.assigned(left, n.Values, i)
			}
		case *ast.CallExpr:
			switch path, name := s.callee(n); {
			case path == registry && name == "Handle" && len(n.Args) >= 2:
				registered = append(registered, n)
			case (path == pgstore || path == sqlitestore) && (name == "DB" || name == "InTx") && len(n.Args) >= 2:
				s.stores[s.object(n.Args[1])] = true
			case (path == pgstore || path == sqlitestore) && name == "New" && len(n.Args) >= 1:
				s.stores[s.object(n.Args[0])] = true
			}
		}
	})
	for f, decl := range s.decls {
		if f.Name() == "Idempotency" && f.Signature().Recv() != nil && decl.Body != nil {
			pass.ExportObjectFact(f, &modeFact{s.modeOf(decl)})
		}
	}
	local := map[*types.Func]bool{}
	for _, call := range registered {
		s.register(call, local)
	}
	for f, decl := range s.decls {
		if !local[f] && f.Exported() {
			if found := s.judge(decl); len(found) > 0 {
				pass.ExportObjectFact(f, &foundFact{found})
			}
		}
	}
	return s
}

// uses reports whether the package, or one that it imports, has to do with a bus.
func (s *source) uses() bool {
	seen := map[*types.Package]bool{}
	var search func(p *types.Package, deep int) bool
	search = func(p *types.Package, deep int) bool {
		if strings.HasPrefix(p.Path(), module) {
			return true
		}
		if seen[p] || deep == 0 {
			return false
		}
		seen[p] = true
		for _, of := range p.Imports() {
			if search(of, deep-1) {
				return true
			}
		}
		return false
	}
	return search(s.pass.Pkg, 3)
}

func (s *source) assigned(left ast.Expr, right []ast.Expr, i int) {
	id, ok := left.(*ast.Ident)
	if !ok || len(right) == 0 || len(right) > 1 && i >= len(right) {
		return
	}
	if object := s.pass.TypesInfo.ObjectOf(id); object != nil {
		s.values[object] = append(s.values[object], right[min(i, len(right)-1)])
	}
}

// register takes one call of registry.Handle.
func (s *source) register(call *ast.CallExpr, local map[*types.Func]bool) {
	var id *ast.Ident
	switch fun := ast.Unparen(call.Fun).(type) {
	case *ast.IndexListExpr:
		id = name(fun.X)
	case *ast.IndexExpr:
		id = name(fun.X)
	default:
		id = name(fun)
	}
	args := s.pass.TypesInfo.Instances[id].TypeArgs
	if args == nil || args.Len() == 0 {
		return
	}
	m := s.commandMode(args.At(0))
	if m == unmarked {
		return
	}
	for _, of := range s.handlersOf(call.Args[1], 2) {
		switch of := of.(type) {
		case *ast.FuncLit:
			s.keep(handler{m, of.Body})
		case *ast.FuncDecl:
			local[s.pass.TypesInfo.Defs[of.Name].(*types.Func)] = true
			if of.Body == nil {
				continue
			}
			if made := s.made(of); made != nil {
				for _, lit := range made {
					s.keep(handler{m, lit.Body})
				}
			} else {
				s.keep(handler{m, of.Body})
			}
		case *ast.Ident: // of another package
			var fact foundFact
			f, ok := s.pass.TypesInfo.Uses[of].(*types.Func)
			if !ok || !s.pass.ImportObjectFact(f.Origin(), &fact) {
				continue
			}
			for _, in := range fact.Found {
				s.found[in.Rule] = append(s.found[in.Rule], finding{of.Pos(), "handler " + f.Name() + ": " + in.Message})
			}
		}
	}
}

// handlersOf gives the functions that an expression stands for: literals, declarations of this package, or the name of one of another.
func (s *source) handlersOf(e ast.Expr, hops int) (of []ast.Node) {
	switch e := ast.Unparen(e).(type) {
	case *ast.FuncLit:
		return []ast.Node{e}
	case *ast.CallExpr: // a function that makes the handler
		return s.handlersOf(e.Fun, hops)
	case *ast.IndexExpr:
		return s.handlersOf(e.X, hops)
	case *ast.IndexListExpr:
		return s.handlersOf(e.X, hops)
	case *ast.Ident, *ast.SelectorExpr:
		id := name(e)
		switch object := s.pass.TypesInfo.Uses[id].(type) {
		case *types.Func:
			if decl := s.decls[object.Origin()]; decl != nil {
				return []ast.Node{decl}
			}
			return []ast.Node{id}
		case *types.Var:
			for _, value := range s.values[object] {
				if hops > 0 {
					of = append(of, s.handlersOf(value, hops-1)...)
				}
			}
		}
	}
	return of
}

// keep runs the rules over a handler. What two handlers reach is found once.
func (s *source) keep(h handler) {
	for rule, find := range rules {
		for _, f := range find(s, h) {
			if key := fmt.Sprint(rule, f.pos); !s.seen[key] {
				s.seen[key] = true
				s.found[rule] = append(s.found[rule], f)
			}
		}
	}
}

// judge runs the rules over a function that may be registered by another package.
func (s *source) judge(decl *ast.FuncDecl) (found []foundIn) {
	if decl.Body == nil {
		return nil
	}
	sig := s.pass.TypesInfo.Defs[decl.Name].(*types.Func).Signature()
	handlers := []handler{{s.handlerMode(sig), decl.Body}}
	for _, lit := range s.made(decl) {
		handlers = append(handlers, handler{s.handlerMode(s.pass.TypesInfo.TypeOf(lit).(*types.Signature)), lit.Body})
	}
	for _, h := range handlers {
		if h.mode == unmarked {
			continue
		}
		for rule, find := range rules {
			for _, f := range find(s, h) {
				at := s.pass.Fset.Position(f.pos)
				found = append(found, foundIn{rule, fmt.Sprintf("%s:%d: %s", filepath.Base(at.Filename), at.Line, f.msg)})
			}
		}
	}
	slices.SortFunc(found, func(a, b foundIn) int {
		return cmp.Or(cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Message, b.Message))
	})
	return slices.Compact(found)
}

// made gives the functions in the form of a handler that a function makes and returns.
func (s *source) made(decl *ast.FuncDecl) (made []*ast.FuncLit) {
	results := s.pass.TypesInfo.Defs[decl.Name].(*types.Func).Signature().Results()
	returns := false
	for v := range results.Variables() {
		sig, ok := v.Type().Underlying().(*types.Signature)
		returns = returns || ok && shaped(sig)
	}
	if returns {
		ast.Inspect(decl.Body, func(n ast.Node) bool {
			if lit, ok := n.(*ast.FuncLit); ok && shaped(s.pass.TypesInfo.TypeOf(lit).(*types.Signature)) {
				made = append(made, lit)
				return false
			}
			return true
		})
	}
	return made
}

// shaped reports whether a function has the form of a handler.
func shaped(sig *types.Signature) bool {
	return sig.Params().Len() == 2 && sig.Results().Len() == 2 &&
		is(sig.Params().At(0).Type(), "context", "Context") && types.Identical(sig.Results().At(1).Type(), types.Universe.Lookup("error").Type())
}

// handlerMode is the mode of the command that a function of that form takes.
func (s *source) handlerMode(sig *types.Signature) mode {
	if !shaped(sig) {
		return unmarked
	}
	return s.commandMode(sig.Params().At(1).Type())
}

// commandMode reads the mark of a command, on its value or its pointer.
func (s *source) commandMode(t types.Type) mode {
	t = types.Unalias(t)
	if p, ok := t.(*types.Pointer); ok {
		t = types.Unalias(p.Elem())
	}
	if _, ok := t.(*types.Named); !ok || types.IsInterface(t) || method(t, "CommandName") == nil {
		return unmarked
	}
	f := method(t, "Idempotency")
	if f != nil && f.Signature().Results().Len() == 1 && is(f.Signature().Results().At(0).Type(), idempotency, "Policy") {
		var fact modeFact
		if s.pass.ImportObjectFact(f.Origin(), &fact) {
			return fact.Mode
		}
		return unclear
	}
	if f := method(t, "Idempotent"); f != nil && f.Signature().Params().Len() == 0 && f.Signature().Results().Len() == 0 {
		return atomic
	}
	return unmarked
}

// modeOf reads the body of a method Idempotency.
func (s *source) modeOf(decl *ast.FuncDecl) mode {
	m := atomic
	ast.Inspect(decl.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Ident:
			if c, ok := s.pass.TypesInfo.Uses[n].(*types.Const); ok && c.Pkg() != nil && c.Pkg().Path() == idempotency && c.Name() == "Leased" {
				m = leased
			}
		case *ast.ReturnStmt:
			if m == atomic && len(n.Results) == 1 {
				if _, ok := ast.Unparen(n.Results[0]).(*ast.CompositeLit); !ok {
					m = unclear
				}
			}
		}
		return true
	})
	return m
}

// walk calls see for every node of a handler and of the functions of this package that it calls.
func (s *source) walk(h handler, see func(ast.Node)) {
	seen := map[ast.Node]bool{}
	var in func(body ast.Node, deep int)
	in = func(body ast.Node, deep int) {
		if seen[body] {
			return
		}
		seen[body] = true
		ast.Inspect(body, func(n ast.Node) bool {
			if n == nil {
				return true
			}
			see(n)
			if call, ok := n.(*ast.CallExpr); ok && deep > 0 {
				for _, decl := range s.called(call) {
					if decl.Body != nil {
						in(decl.Body, deep-1)
					}
				}
			}
			return true
		})
	}
	in(h.body, depth)
}

// called gives the functions of this package that a call runs; through an interface, those of each type of this package that has it.
func (s *source) called(call *ast.CallExpr) (decls []*ast.FuncDecl) {
	f, ok := typeutil.Callee(s.pass.TypesInfo, call).(*types.Func)
	if !ok {
		return nil
	}
	recv := f.Signature().Recv()
	if recv == nil || !types.IsInterface(recv.Type()) {
		if decl := s.decls[f.Origin()]; decl != nil {
			decls = append(decls, decl)
		}
		return decls
	}
	if f.Pkg() != s.pass.Pkg {
		return nil
	}
	needs := recv.Type().Underlying().(*types.Interface)
	for object, decl := range s.decls {
		if object.Name() != f.Name() || object.Signature().Recv() == nil {
			continue
		}
		if t := object.Signature().Recv().Type(); types.Implements(t, needs) || types.Implements(types.NewPointer(t), needs) {
			decls = append(decls, decl)
		}
	}
	return decls
}

// callee gives the package and the name of what is called: "DB", or "Pool.Exec" for a method.
func (s *source) callee(call *ast.CallExpr) (path, name string) {
	f, ok := typeutil.Callee(s.pass.TypesInfo, call).(*types.Func)
	if !ok || f.Pkg() == nil {
		return "", ""
	}
	if recv := f.Signature().Recv(); recv != nil {
		t := recv.Type()
		if p, ok := types.Unalias(t).(*types.Pointer); ok {
			t = p.Elem()
		}
		if n, ok := types.Unalias(t).(*types.Named); ok {
			return f.Pkg().Path(), n.Obj().Name() + "." + f.Name()
		}
		return f.Pkg().Path(), "." + f.Name()
	}
	return f.Pkg().Path(), f.Name()
}

// object is the variable or field that an expression names.
func (s *source) object(e ast.Expr) types.Object {
	if id := name(e); id != nil {
		return s.pass.TypesInfo.ObjectOf(id)
	}
	return nil
}

// text is the value of a constant string.
func (s *source) text(e ast.Expr) (string, bool) {
	if v := s.pass.TypesInfo.Types[e].Value; v != nil && v.Kind() == constant.String {
		return constant.StringVal(v), true
	}
	return "", false
}

func (s *source) inTest(pos token.Pos) bool {
	return strings.HasSuffix(s.pass.Fset.Position(pos).Filename, "_test.go")
}

// name is the identifier that an expression ends in.
func name(e ast.Expr) *ast.Ident {
	switch e := ast.Unparen(e).(type) {
	case *ast.Ident:
		return e
	case *ast.SelectorExpr:
		return e.Sel
	}
	return nil
}

// is reports whether t, or what it points to, is the named type.
func is(t types.Type, path, name string) bool {
	if p, ok := types.Unalias(t).(*types.Pointer); ok {
		t = p.Elem()
	}
	n, ok := types.Unalias(t).(*types.Named)
	return ok && n.Obj().Name() == name && n.Obj().Pkg() != nil && n.Obj().Pkg().Path() == path
}

func method(t types.Type, name string) *types.Func {
	object, _, _ := types.LookupFieldOrMethod(t, true, nil, name)
	f, _ := object.(*types.Func)
	return f
}
