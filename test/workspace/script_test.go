package workspace_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// script writes random lines of shell that work on a small set of paths, so that
// most of them meet something. Each line says what it is and how it ended: the
// same words inside a box and outside are a fact of their own.
//
// It leaves out what an overlay is known to do otherwise, or what policy stops:
// links that leave, set-id bits, and writing through one of several names that a
// file had before the step began.
type script struct {
	*rand.Rand
	// shut: modes may take permissions away. A folder is then never moved: mv
	// falls back on a copy where a folder of a lower layer cannot be renamed, and
	// cannot copy what cannot be read.
	shut bool
}

func newScript(seed uint64) *script {
	return &script{Rand: rand.New(rand.NewPCG(seed, 4)), shut: seed%3 == 0}
}

// prologue has the names, of which YAML cannot hold all, and the words. Nothing
// opens a FIFO, which would wait for ever.
const prologue = `umask 022
e=$(printf 'caf\351') # not UTF-8
n=$(printf 'new\nline')
fifo() { [ -p "$1" ]; }
say() { printf '%s %s\n' "$1" "$2"; }
put() { fifo "$2" || printf %s "$1" >"$2"; }
add() { fifo "$2" || printf %s "$1" >>"$2"; }
patch() { fifo "$2" || [ ! -e "$2" ] || printf %s "$1" 1<>"$2"; }
exec 2>/dev/null
`

// path is one with the shell's quotes.
func (s *script) path() string {
	if s.IntN(8) == 0 {
		return quote(pick(s, tops...))
	}
	return s.deep()
}

// deep is a path that is not the top of a tree, so that not all is soon gone.
func (s *script) deep() string {
	p := quote(pick(s, tops...)) + "/" + s.low()
	if s.IntN(5) < 2 {
		p += "/" + pick(s, "p", "q")
	}
	return p
}

var tops = []string{"a", "-d", "two words"}

func (s *script) low() string {
	return pick(s, "x", "y", "ü", `"$e"`, `"$n"`)
}

func pick(s *script, of ...string) string { return of[s.IntN(len(of))] }

func quote(w string) string { return "./'" + w + "'" }

func (s *script) text() string { return fmt.Sprintf("text%03d", s.IntN(1000)) }

func (s *script) fileMode() string {
	if s.shut && s.IntN(3) == 0 {
		return pick(s, "000", "200", "222", "111")
	}
	return pick(s, "644", "755", "600", "444", "640", "700", "1644")
}

func (s *script) folderMode() string {
	if s.shut && s.IntN(3) == 0 {
		return pick(s, "000", "555", "311", "400", "600")
	}
	return pick(s, "755", "700", "750", "1777", "711")
}

// op is one kind of line.
type op struct {
	name   string
	weight int
	line   func(s *script) string
}

// ops are all kinds. A chain of && ends as its first part that did not work.
var ops = []op{
	{"write", 10, func(s *script) string { return fmt.Sprintf("put %s %s", s.text(), s.path()) }},
	{"overwrite", 8, func(s *script) string { return fmt.Sprintf("patch %s %s", s.text(), s.path()) }},
	{"append", 6, func(s *script) string { return fmt.Sprintf("add %s %s", s.text(), s.path()) }},
	{"truncate", 5, func(s *script) string {
		p := s.path()
		return fmt.Sprintf("[ -f %s ] && truncate -s %d %s", p, s.IntN(3)*s.IntN(5000), p)
	}},
	{"copy", 5, func(s *script) string {
		return fmt.Sprintf("[ -f %[1]s ] && [ ! -d %[2]s ] && ! fifo %[2]s && cp %[1]s %[2]s", s.path(), s.path())
	}},
	{"chmod", 6, func(s *script) string {
		p := s.path()
		return fmt.Sprintf("if [ -d %[1]s ]; then chmod %[2]s %[1]s; else chmod %[3]s %[1]s; fi", p, s.folderMode(), s.fileMode())
	}},
	{"chmod of the workspace", 1, func(s *script) string { return "chmod " + pick(s, "755", "750", "700") + " ." }},
	{"mkdir", 12, func(s *script) string { return "mkdir " + s.path() }},
	{"mkdir with all above", 5, func(s *script) string { return "mkdir -p " + s.path() }},
	{"rmdir", 3, func(s *script) string { return "rmdir " + s.path() }},
	{"rm -r", 3, func(s *script) string { return "rm -r " + s.deep() }},
	{"unlink", 5, func(s *script) string { return "unlink " + s.deep() }},
	{"rename a file", 12, func(s *script) string {
		p := s.deep()
		return fmt.Sprintf("[ -f %[1]s ] && [ ! -d %[2]s ] && mv -fT %[1]s %[2]s", p, s.path())
	}},
	{"move a folder", 10, func(s *script) string {
		p, to := s.deep(), s.path()
		if s.shut {
			return fmt.Sprintf("[ -L %[1]s ] && mv -fT %[1]s %[2]s", p, to)
		}
		return fmt.Sprintf("[ -d %[1]s ] && mv -fT %[1]s %[2]s", p, to)
	}},
	{"symlink", 6, func(s *script) string {
		return fmt.Sprintf("ln -sfT %s %s", pick(s, "x", "y", "./ü", "x/p", "nowhere", "."), s.path())
	}},
	{"hard link", 5, func(s *script) string { return fmt.Sprintf("ln -PfT %s %s", s.path(), s.path()) }},
	{"a folder for a file", 4, func(s *script) string {
		p := s.deep()
		return fmt.Sprintf("[ -f %[1]s ] && rm -f %[1]s && mkdir %[1]s && put %[2]s %[1]s/p", p, s.text())
	}},
	{"a file for a folder", 3, func(s *script) string {
		p := s.deep()
		return fmt.Sprintf("[ -d %[1]s ] && rm -r %[1]s && put %[2]s %[1]s", p, s.text())
	}},
	{"there and back", 3, func(s *script) string {
		p := s.deep()
		if s.shut {
			return fmt.Sprintf("[ -f %[1]s ] && mv -T %[1]s .kept && mkdir %[1]s && rmdir %[1]s && mv -T .kept %[1]s", p)
		}
		return fmt.Sprintf("[ -d %[1]s ] && [ ! -L %[1]s ] && cp -aT %[1]s .kept && rm -r %[1]s && mv -T .kept %[1]s", p)
	}},
	{"emptied", 2, func(s *script) string {
		p := s.deep()
		return fmt.Sprintf("[ -d %[1]s ] && [ ! -L %[1]s ] && rm -r %[1]s && mkdir %[1]s", p)
	}},
	{"touch", 5, func(s *script) string { return "touch -c -d 2001-02-03 " + s.path() }},
	{"fifo", 3, func(s *script) string { return "mkfifo " + s.path() }},
	{"fifo for a file", 2, func(s *script) string {
		p := s.deep()
		return fmt.Sprintf("[ -f %[1]s ] && rm -f %[1]s && mkfifo %[1]s", p)
	}},
	{"nothing much", 2, func(s *script) string {
		p := s.path()
		return fmt.Sprintf("put %s %[2]s/made && unlink %[2]s/made", s.text(), p)
	}},
}

// op picks a kind by its weight.
func (s *script) op() op {
	sum := 0
	for _, o := range ops {
		sum += o.weight
	}
	n := s.IntN(sum)
	for _, o := range ops {
		if n -= o.weight; n < 0 {
			return o
		}
	}
	panic("unreachable")
}

// lines is one step's script.
func (s *script) lines(n int) string {
	var b strings.Builder
	b.WriteString(prologue)
	for range n {
		o := s.op()
		fmt.Fprintf(&b, "if { %[1]s; }; then say ok '%[2]s'; else say no '%[2]s'; fi\n", o.line(s), o.name)
	}
	return b.String()
}

// tree is the script that makes what the first step finds. What a normal user
// cannot look into for secrets is in no box of his, so every folder can be read.
func (s *script) tree() string {
	var b strings.Builder
	b.WriteString(prologue)
	for _, top := range tops {
		if s.IntN(6) == 0 {
			fmt.Fprintf(&b, "put %s %s\n", s.text(), quote(top))
			continue
		}
		fmt.Fprintf(&b, "mkdir %s\n", quote(top))
		for _, low := range []string{"x", "y", "ü", `"$e"`, `"$n"`} {
			p := quote(top) + "/" + low
			switch s.IntN(9) {
			case 0:
			case 1:
				fmt.Fprintf(&b, "ln -s %s %s\n", pick(s, "x", "y", "nowhere", "x/p"), p)
			case 2:
				fmt.Fprintf(&b, "mkfifo %s\n", p)
			case 3, 4, 5:
				fmt.Fprintf(&b, "mkdir %[1]s; put %[2]s %[1]s/p; put %[3]s %[1]s/q; chmod %[4]s %[1]s/q; chmod %[5]s %[1]s\n", p, s.text(), s.text(), s.fileMode(), pick(s, "755", "700", "750", "755", "555"))
			default:
				fmt.Fprintf(&b, "put %[2]s %[1]s; chmod %[3]s %[1]s\n", p, s.text(), s.fileMode())
			}
		}
	}
	return b.String()
}
