package vet

import (
	"go/ast"
	"go/types"
	"strings"

	"golang.org/x/tools/go/analysis"
)

// runPayloadInLog: rule payloadinlog.
func runPayloadInLog(pass *analysis.Pass) (any, error) {
	s := pass.ResultOf[facts].(*source)
	s.inspect.Preorder([]ast.Node{(*ast.CallExpr)(nil)}, func(n ast.Node) {
		call := n.(*ast.CallExpr)
		path, name := s.callee(call)
		own := ownWords(path, name)
		if own == nil || s.inTest(call.Pos()) || path == "fmt" && strings.HasPrefix(name, "Fprint") && !s.standardStream(call.Args[0]) {
			return
		}
		for _, arg := range call.Args {
			t := pass.TypesInfo.TypeOf(arg)
			if t == nil || s.commandMode(t) == unmarked || has(t, own) {
				continue
			}
			pass.Reportf(arg.Pos(), "the command %s is logged whole, with all that the customer typed; log single fields or an external reference",
				types.TypeString(t, types.RelativeTo(pass.Pkg)))
		}
	})
	return nil, nil
}

// ownWords gives the methods by which a type says itself what such a call writes, or nil for a call that writes no log.
func ownWords(path, name string) []string {
	switch path {
	case "go.uber.org/zap":
		if name == "Any" || name == "Reflect" || name == "Object" || name == "Inline" || strings.HasPrefix(name, "SugaredLogger.") {
			return []string{"MarshalLogObject", "MarshalLogArray", "String", "Format"}
		}
	case "log/slog":
		if name == "Any" || name == "AnyValue" || name == "Group" || printing(strings.TrimPrefix(name, "Logger.")) {
			return []string{"LogValue", "String", "Format"}
		}
	case "log":
		if printing(strings.TrimPrefix(name, "Logger.")) {
			return []string{"String", "Format"}
		}
	case "fmt":
		if printing(name) {
			return []string{"String", "Format"}
		}
	}
	return nil
}

// standardStream reports whether an expression is os.Stdout or os.Stderr. What is written elsewhere may well be an answer.
func (s *source) standardStream(e ast.Expr) bool {
	v, ok := s.object(e).(*types.Var)
	return ok && v.Pkg() != nil && v.Pkg().Path() == "os" && (v.Name() == "Stdout" || v.Name() == "Stderr")
}

// printing reports whether a function of log/slog, log or fmt writes.
func printing(name string) bool {
	for _, prefix := range []string{"Print", "Fprint", "Fatal", "Panic", "Debug", "Info", "Warn", "Error", "Log", "With"} {
		if strings.HasPrefix(name, prefix) {
			return name != "Errorf"
		}
	}
	return false
}

func has(t types.Type, methods []string) bool {
	for _, name := range methods {
		if m, _, _ := types.LookupFieldOrMethod(t, false, nil, name); m != nil {
			if _, ok := m.(*types.Func); ok {
				return true
			}
		}
	}
	return false
}
