package steps

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/lazy"
)

var (
	idShape   = lazy.Regexp(idPattern)
	envShape  = lazy.Regexp(envPattern)
	sizeShape = lazy.Regexp(sizePattern)
	// Numbers are decimal. YAML has more ways to write them (1e3, 0x200, 010,
	// 1_000), and readers do not agree on what those are.
	wholeShape   = lazy.Regexp(`^-?(0|[1-9][0-9]*)$`)
	decimalShape = lazy.Regexp(`^-?((0|[1-9][0-9]*)(\.[0-9]+)?|\.[0-9]+)$`)
)

// allowed is what an error says may stand at a key.
func (k key) allowed() string {
	or := ""
	if k.null {
		or = ", or null for none"
	}
	switch k.name {
	case "id", "kernel":
		return "a text of 1 to 64 letters, digits, and . _ - after the first"
	case "name":
		return fmt.Sprintf("a text of 1 to %d characters", maxName)
	case "run":
		return "a script, as a text"
	case "code":
		return "Python, as a text"
	case "command":
		return "a list: the program and its arguments"
	case "image":
		return allowedImage
	case "env":
		return "a map of names to texts"
	case "passEnv":
		return "a list of variable names"
	case "workdir":
		return "an absolute path in the box without .., or image"
	case "setup":
		return "a script for sh, as a text" + or
	case "apparmor":
		return "a name of a loaded profile: up to 128 letters, digits, and _ . -" + or
	case "setupCache":
		return "a list of files of the workspace, such as [requirements.txt]" + or
	case "profiles":
		return "a list of profiles of kern: vcpu:NAME, vdisk:NAME"
	case "setupEgress":
		return "a list of rules: " + allowedRule + "; or null for every public host"
	case "egressAllow":
		return "a list of rules: " + allowedRule
	case "egressDeny", "expectDenied":
		return "a list of rules"
	case "mounts":
		return "a map of absolute host paths to a path in the box, or to [path, ro] or [path, rw]"
	case "tmpfs":
		return "a map of paths to sizes such as 64m, or a list of paths"
	case "capDrop":
		return "a list of capabilities, such as [ALL]"
	case "allowChanges":
		return "a list of globs: " + allowedGlob
	case "needs":
		return "an id, or a list of ids"
	case "tolerate":
		return "a list of fault types: " + strings.Join(k.words, ", ")
	case "expect":
		return "{exitCode: N}, N from 0 to 255, or {fault: TYPE}"
	case "cpus", "timeoutS", "setupTimeoutS":
		return fmt.Sprintf("a number from %v to %v%s", k.min, k.max, or)
	}
	switch {
	case k.words != nil:
		return strings.Join(k.words, ", ") + or
	case k.max > 0:
		return fmt.Sprintf("a whole number from %d to %d%s", int64(k.min), int64(k.max), or)
	}
	return "true or false"
}

// text reads a text. A plain number or boolean is no text: whoever wrote it may
// have meant the other thing.
func (c *checker) text(name, allowed string, v value) (string, bool) {
	switch v.kind {
	case textKind:
	case intKind, floatKind, boolKind:
		c.mistyped(name, v, allowed, "put quotes around it to make it a text")
		return "", false
	default:
		c.mistyped(name, v, allowed)
		return "", false
	}
	if strings.ContainsRune(v.text, 0) {
		c.wrong(v, name+" has a NUL character in it", allowed)
		return "", false
	}
	return v.text, true
}

// verbatim reads a text where a plain number or boolean can only be meant as it
// is written: an argument, or the value of a variable.
func (c *checker) verbatim(name, allowed string, v value) (string, bool) {
	switch v.kind {
	case intKind, floatKind, boolKind:
		v.kind = textKind
	case nullKind:
		c.mistyped(name, v, allowed, `write "" for an empty text`)
		return "", false
	}
	return c.text(name, allowed, v)
}

// word reads one of the words of a key.
func (c *checker) word(name string, words []string, v value) (string, bool) {
	allowed := strings.Join(words, ", ")
	s, ok := c.text(name, allowed, v)
	if ok && !slices.Contains(words, s) {
		c.wrong(v, name+" is none of the words it can be", allowed, c.meant(s, words)...)
		return "", false
	}
	return s, ok
}

// list reads a list whose items are each there once.
func (c *checker) list(k key, v value, each func(value) (string, bool)) []string {
	if v.kind != listKind {
		var hints []string
		if v.kind == textKind {
			hints = []string{"a list of one is written in brackets"}
		}
		c.mistyped(k.name, v, k.allowed(), hints...)
		return nil
	}
	out := make([]string, 0, len(v.items))
	seen := make(map[string]bool, len(v.items))
	for _, item := range v.items {
		s, ok := each(item)
		if !ok {
			continue
		}
		if seen[s] {
			c.wrong(item, k.name+" lists this twice", "each once")
			continue
		}
		seen[s] = true
		out = append(out, s)
	}
	return out
}

func (c *checker) flag(k key, v value) bool {
	if v.kind == boolKind {
		return strings.EqualFold(v.text, "true")
	}
	c.mistyped(k.name, v, k.allowed(), "yes, no, on, off and quoted words are texts")
	return false
}

// whole reads a whole number within the bounds of the key; 0 is null.
func (c *checker) whole(k key, v value) int64 {
	if v.kind == nullKind && k.null {
		return 0
	}
	n, _ := c.wholeIn(k.name, k.allowed(), int64(k.min), int64(k.max), v)
	return n
}

func (c *checker) wholeIn(name, allowed string, lo, hi int64, v value) (int64, bool) {
	switch {
	case v.kind == textKind && wholeShape().MatchString(v.text):
		c.mistyped(name, v, allowed, "take the quotes away")
	case v.kind != intKind && v.kind != floatKind:
		c.mistyped(name, v, allowed)
	case !wholeShape().MatchString(v.text):
		c.wrong(v, name+" is not a whole number in plain decimal digits", allowed)
	default:
		n, err := strconv.ParseInt(v.text, 10, 64)
		if err != nil || n < lo || n > hi {
			c.wrong(v, name+" is out of range", allowed)
			return 0, false
		}
		return n, true
	}
	return 0, false
}

// decimal reads a number within the bounds of the key; 0 is null.
func (c *checker) decimal(k key, v value) float64 {
	switch {
	case v.kind == nullKind && k.null:
	case v.kind == textKind && decimalShape().MatchString(v.text):
		c.mistyped(k.name, v, k.allowed(), "take the quotes away")
	case v.kind != intKind && v.kind != floatKind:
		c.mistyped(k.name, v, k.allowed())
	case !decimalShape().MatchString(v.text):
		c.wrong(v, k.name+" is not a number in plain decimal digits", k.allowed())
	default:
		f, err := strconv.ParseFloat(v.text, 64)
		if err != nil || math.IsNaN(f) || f < k.min || f > k.max {
			c.wrong(v, k.name+" is out of range", k.allowed())
			return 0
		}
		return f
	}
	return 0
}

func readID(c *checker, k key, v value, s *step) {
	id, ok := c.text(k.name, k.allowed(), v)
	if ok && !IsID(id) {
		c.wrong(v, "not an id", k.allowed())
	}
	s.ID = v.text // even a wrong one: others may need it
}

func readName(c *checker, k key, v value, s *step) {
	name, ok := c.text(k.name, k.allowed(), v)
	if n := utf8.RuneCountInString(name); ok && (n == 0 || n > maxName) {
		c.wrong(v, fmt.Sprintf("name has %d characters", n), k.allowed())
	}
	s.Name = name
}

// readRun takes true and false as they are: both are commands.
func readRun(c *checker, k key, v value, s *step) {
	if v.kind == boolKind {
		v.kind = textKind
	}
	text, ok := c.text(k.name, k.allowed(), v)
	if ok && strings.TrimSpace(text) == "" {
		c.wrong(v, "run is empty", k.allowed())
	}
	s.Run = script(text)
}

// readCode takes what is no text as it is written, where that is an expression.
func readCode(c *checker, k key, v value, s *step) {
	text, ok := c.verbatim(k.name, k.allowed(), v)
	if ok && strings.TrimSpace(text) == "" {
		c.wrong(v, "code is empty", k.allowed())
	}
	s.Code = script(text)
}

func readKernel(c *checker, k key, v value, s *step) {
	name, ok := c.text(k.name, k.allowed(), v)
	if ok && !IsID(name) {
		c.wrong(v, "not a name of a kernel", k.allowed())
	}
	s.Kernel = name
}

func readCommand(c *checker, k key, v value, s *step) {
	s.Command = nil
	switch {
	case v.kind != listKind:
		c.mistyped(k.name, v, k.allowed(), "a line for a shell goes under run")
		return
	case len(v.items) == 0:
		c.wrong(v, "command is empty", k.allowed())
		return
	}
	for i, item := range v.items {
		arg, ok := c.verbatim(fmt.Sprintf("item %d of command", i+1), "a text", item)
		switch {
		case !ok:
		case i == 0 && arg == "":
			c.wrong(item, "command names no program", k.allowed())
		case len(arg) > maxString:
			c.wrong(item, fmt.Sprintf("item %d of command has %d bytes", i+1, len(arg)), fmt.Sprintf("at most %d bytes", maxString))
		}
		s.Command = append(s.Command, argument(arg))
	}
}

func readLanguage(c *checker, k key, v value, s *step) {
	s.Language, _ = c.word(k.name, k.words, v)
}

// dir is where relative paths of the file start.
func (c *checker) dir() (string, error) {
	switch {
	case c.opt.Dir != "":
		return c.opt.Dir, nil
	case c.file == "-" || c.file == "":
		return c.opt.Workspace, nil
	}
	abs, err := filepath.Abs(c.file)
	return filepath.Dir(abs), err
}

func readEnv(c *checker, k key, v value, s *step) {
	s.Env = nil
	if v.kind != mapKind {
		c.mistyped(k.name, v, k.allowed())
		return
	}
	for _, p := range v.pairs {
		name := p.key.text
		if !envShape().MatchString(name) {
			c.wrong(p.key, "not a name of a variable", "letters, digits and _, no digit first")
			continue
		}
		val, ok := c.verbatim("variable "+name, "a text", p.val)
		if n := len(name) + 1 + len(val); ok && n > maxString {
			c.wrong(p.val, fmt.Sprintf("variable %s has %d bytes", inert(name), n), fmt.Sprintf("at most %d bytes, its name included", maxString))
		}
		s.Env = append(s.Env, EnvVar{Name: name, Value: val})
	}
}

func readPassEnv(c *checker, k key, v value, s *step) {
	s.PassEnv = c.list(k, v, func(item value) (string, bool) {
		name, ok := c.text("an item of passEnv", "a name of a variable", item)
		if ok && !envShape().MatchString(name) {
			c.wrong(item, "not a name of a variable", "letters, digits and _, no digit first")
			return "", false
		}
		return name, ok
	})
}

func readWorkdir(c *checker, k key, v value, s *step) {
	dir, ok := c.text(k.name, k.allowed(), v)
	if !ok {
		return
	}
	if dir == workdirOfImage { // whose it is shows when the image was read, or not: see check
		s.Workdir = dir
		return
	}
	clean, why := cleanTarget(dir)
	if why != "" {
		var hints []string
		if dir != "" && dir[0] != '/' {
			hints = []string{"folders of the workspace are below " + box.WorkspaceTarget}
		}
		c.wrong(v, "workdir "+why, k.allowed(), hints...)
		return
	}
	s.Workdir = clean
}

func readMemory(c *checker, k key, v value, s *step)        { s.MemoryMb = c.whole(k, v) }
func readPids(c *checker, k key, v value, s *step)          { s.Pids = c.whole(k, v) }
func readCPUs(c *checker, k key, v value, s *step)          { s.CPUs = c.decimal(k, v) }
func readTimeout(c *checker, k key, v value, s *step)       { s.TimeoutS = c.decimal(k, v) }
func readRequireLimits(c *checker, k key, v value, s *step) { s.RequireLimits = c.flag(k, v) }
func readNetwork(c *checker, k key, v value, s *step)       { s.Network = c.flag(k, v) }
func readMaxOutput(c *checker, k key, v value, s *step)     { s.MaxOutputBytes = c.whole(k, v) }
func readTrackFiles(c *checker, k key, v value, s *step)    { s.TrackFiles = c.flag(k, v) }
func readRetries(c *checker, k key, v value, s *step)       { s.Retries = c.whole(k, v) }
func readContinueOnError(c *checker, k key, v value, s *step) {
	s.ContinueOnError = c.flag(k, v)
}

func readEngine(c *checker, k key, v value, s *step) {
	s.Engine = ""
	if v.kind != nullKind {
		s.Engine, _ = c.word(k.name, k.words, v)
	}
}

func readSecurityProfile(c *checker, k key, v value, s *step) {
	s.SecurityProfile = ""
	if v.kind != nullKind {
		s.SecurityProfile, _ = c.word(k.name, k.words, v)
	}
}

func readNeeds(c *checker, k key, v value, s *step) {
	if v.kind != listKind {
		if id, ok := c.text(k.name, k.allowed(), v); ok {
			s.Needs = names{id}
		}
		return
	}
	before := len(c.errs)
	s.Needs = c.list(k, v, func(item value) (string, bool) { return c.text("an item of needs", "an id", item) })
	if len(c.errs) > before {
		s.Needs = nil // places and ids would no longer match
	}
}

func readTolerate(c *checker, k key, v value, s *step) {
	s.Tolerate = nil
	for _, w := range c.list(k, v, func(item value) (string, bool) { return c.word("an item of tolerate", k.words, item) }) {
		s.Tolerate = append(s.Tolerate, box.FaultType(w))
	}
}

func readExpect(c *checker, k key, v value, s *step) {
	if v.kind != mapKind {
		c.mistyped(k.name, v, k.allowed())
		return
	}
	var e expectation
	for _, p := range v.pairs {
		switch p.key.text {
		case "exitCode":
			if n, ok := c.wholeIn("exitCode", "a whole number from 0 to 255", 0, 255, p.val); ok {
				code := int(n)
				e.ExitCode = &code
			}
		case "fault":
			if w, ok := c.word("fault", faultWords(), p.val); ok {
				e.Fault = box.FaultType(w)
			}
		default:
			c.unknown(p.key, " in expect", []string{"exitCode", "fault"})
		}
	}
	if len(v.pairs) != 1 {
		c.wrong(v, fmt.Sprintf("expect has %d keys", len(v.pairs)), "exactly one of exitCode, fault")
	}
	s.Expect = e
}
