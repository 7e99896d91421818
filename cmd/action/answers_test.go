package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// toStdout are the functions that may use stdout, and why they may.
var toStdout = map[string]string{
	"answer":       "print and printJSON made it inert; pin has refused what would act, and the filter is all ours",
	"report":       "the writers of a report make it inert",
	"do":           "for the log, and for the report",
	"finishMerge":  "for the log, and for the report",
	"finish":       "the writers of the table and of the report make it inert",
	"runInputs":    "for commands to the runner, which are ours",
	"unstarted":    "for commands to the runner, which are ours",
	"wouldRun":     "it is set to nothing",
	"doctorsPlace": "it is set to nothing",
	"doctor":       "it is set to nothing",
	"mcp":          "the output is the protocol's, JSON in which no text of a box is a line of its own",
}

// TestAnswersGoThroughPrint: whatever a verb prints to stdout may quote names that
// others chose, so there is one place where that is made inert.
func TestAnswersGoThroughPrint(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(err)
	}
	used := map[string]bool{}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		src, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, src, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			ast.Inspect(fn, func(n ast.Node) bool {
				at, ok := n.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				of, _ := at.X.(*ast.Ident)
				switch {
				case of != nil && of.Name == "os" && at.Sel.Name == "Stdout", of != nil && of.Name == "fmt" && slices.Contains([]string{"Print", "Printf", "Println"}, at.Sel.Name):
					if fn.Name.Name != "main" {
						t.Errorf("%s: %s uses %s.%s", name, fn.Name.Name, of.Name, at.Sel.Name)
					}
				case at.Sel.Name == "stdout":
					if used[fn.Name.Name] = true; toStdout[fn.Name.Name] == "" {
						t.Errorf("%s: %s uses stdout; print and printJSON make inert what is printed", name, fn.Name.Name)
					}
				}
				return true
			})
		}
	}
	for fn := range toStdout {
		if !used[fn] {
			t.Errorf("%s does not use stdout", fn)
		}
	}
}
