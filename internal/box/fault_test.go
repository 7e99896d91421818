package box

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// declared lists the constants of type FaultType, as the source has them: one
// that is missing from Kinds would be missing from every report's words.
func declared(t *testing.T) []FaultType {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "fault.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var out []FaultType
	ast.Inspect(f, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if typ, ok := spec.Type.(*ast.Ident); !ok || typ.Name != "FaultType" {
			return true
		}
		for _, v := range spec.Values {
			s, err := strconv.Unquote(v.(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, FaultType(s))
		}
		return true
	})
	return out
}

func TestKinds(t *testing.T) {
	all := declared(t)
	if len(all) != len(Kinds) {
		t.Errorf("%d fault types are declared, %d have a row in Kinds", len(all), len(Kinds))
	}
	words := map[string]FaultType{}
	for i, ft := range all {
		t.Run(string(ft)+" has a title, a meaning and a hint of its own, in the order of the declarations", func(t *testing.T) {
			k, ok := Kind(ft)
			if !ok {
				t.Fatal("it has no row")
			}
			if i < len(Kinds) && Kinds[i].Type != ft {
				t.Errorf("row %d is %s", i, Kinds[i].Type)
			}
			for what, text := range map[string]string{"title": k.Title, "meaning": k.Means, "hint": k.Hint} {
				if strings.TrimSpace(text) == "" {
					t.Errorf("no %s", what)
				}
				if other, taken := words[text]; taken {
					t.Errorf("the %s is that of %s", what, other)
				}
				words[text] = ft
			}
			if !strings.HasSuffix(k.Means, ".") {
				t.Errorf("the meaning is no sentence: %q", k.Means)
			}
			if strings.HasSuffix(k.Hint, ".") || strings.HasSuffix(k.Title, ".") {
				t.Errorf("title and hint stand in tables and lists, without a full stop: %q, %q", k.Title, k.Hint)
			}
		})
	}
	t.Run("a word that is no fault type has no row", func(t *testing.T) {
		for _, word := range []FaultType{"", "Timeout", "timeout ", "passed"} {
			if k, ok := Kind(word); ok || k != (FaultKind{}) {
				t.Errorf("%q has %+v", word, k)
			}
		}
	})
}

func TestEveryFaultHasASectionInTheDocs(t *testing.T) {
	text, err := os.ReadFile("../../docs/faults.md")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range regexp.MustCompile(`(?m)^## ([a-z_]+)\n\n\S`).FindAllStringSubmatch(string(text), -1) {
		got = append(got, m[1])
	}
	var want []string
	for _, k := range Kinds {
		want = append(want, string(k.Type))
	}
	if g, w := strings.Join(got, " "), strings.Join(want, " "); g != w {
		t.Errorf("docs/faults.md has sections with text for: %s\nin order of precedence it should be: %s", g, w)
	}
}
