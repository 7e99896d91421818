package steps

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/egress"
)

// Options is what a steps file is checked against. Nothing else of the machine
// is looked at.
type Options struct {
	// Workspace is the real path of the workspace.
	Workspace string
	// Dir is the folder where a relative rootfs: starts; empty is the folder of
	// the steps file, or the workspace for a file without one.
	Dir string
	// Home is the caller's home folder, which no box may see.
	Home string
	// HostEnv looks up a variable of the caller; passEnv takes from there. nil
	// is an empty environment.
	HostEnv func(string) (string, bool)
	// XDG has the XDG_*_HOME and XDG_RUNTIME_DIR variables of the caller: kern
	// keeps in these folders what no box may see.
	XDG map[string]string
	// Stat and EvalSymlinks look at host paths; nil is the system's own.
	Stat         func(string) (os.FileInfo, error)
	EvalSymlinks func(string) (string, error)
	// Only names the ids to run; empty is all. What the chosen steps need of
	// the others is dropped: who asks for one step gets one step.
	Only []string
	// Part is the part of the plan to keep; Of 0 is all of it. It is taken of all
	// steps of the file, whatever Only says.
	Part Part
	// HostPreset reads a preset that stands for what a package client of this
	// machine is set up for. nil refuses those presets by name.
	HostPreset func(name string) (egress.Preset, error)
	// Policy is a ceiling over what the file may ask for; nil is none.
	Policy *Policy
	// Engine is the one that the run was told to take by name, and EngineBy how it
	// was told; "" or auto is none. A step that names another is refused: taking
	// either would go against what somebody asked for.
	Engine, EngineBy string
	// BareList lets the file be the list of steps alone, for text written in
	// place of a file.
	BareList bool
}

// Load reads a steps file, checks all of it and fills in every default. The
// error, if there is one, is of type Errors and holds everything that is wrong
// with the file.
func Load(name string, src []byte, opt Options) (*Plan, error) {
	opt = opt.complete()
	root, errs := parse(name, src)
	if errs != nil && root.pos == (pos{}) {
		return nil, errs.sorted() // there is no tree to look at
	}
	c := newChecker(name, opt, errs)
	list := c.document(root)
	if len(c.errs) == 0 && opt.Policy != nil {
		c.ceiling(opt.Policy, list)
	}
	c.pinnedEngine(list)
	if !opt.BareList {
		c.expressions(src)
	}
	if len(c.errs) > 0 {
		return nil, c.errs.sorted()
	}
	for _, s := range list {
		s.presets = c.named(s)
	}
	plan, err := fill(name, list, opt)
	if err != nil {
		return nil, err
	}
	sort.SliceStable(c.warnings, func(i, j int) bool { return c.warnings[i].Line < c.warnings[j].Line })
	plan.Warnings, plan.ImagePlaces = c.warnings, c.images
	if opt.Policy != nil {
		plan.Policy = opt.Policy.Ref()
	}
	return plan, nil
}

// complete fills in the system's own for what is nil.
func (o Options) complete() Options {
	if o.Stat == nil {
		o.Stat = os.Stat
	}
	if o.EvalSymlinks == nil {
		o.EvalSymlinks = filepath.EvalSymlinks
	}
	if o.HostEnv == nil {
		o.HostEnv = func(string) (string, bool) { return "", false }
	}
	return o
}

func newChecker(file string, opt Options, errs Errors) *checker {
	return &checker{file: file, opt: opt, guard: NewGuard(opt), errs: errs, said: map[said]bool{}, read: map[string]readPreset{}}
}

// checker collects what is wrong.
type checker struct {
	file  string
	opt   Options
	guard *Guard
	errs  Errors
	said  map[said]bool
	asked int // how often meant looked
	read  map[string]readPreset
	// stepsAt is where the list of steps stands.
	stepsAt pos
	// images are the places where images of registries are named.
	images []ImagePlace
	// warnings do not keep a file from being run.
	warnings []Warning
}

type said struct {
	pos
	what string
}

// add notes a problem, once: what is wrong in defaults would be seen again in
// every step.
func (c *checker) add(at pos, what, text, allowed string, hints ...string) {
	if c.said[said{at, what}] {
		return
	}
	c.said[said{at, what}] = true
	c.errs = append(c.errs, &FileError{File: c.file, Line: at.line, Column: at.col, What: what, Text: text, Allowed: allowed, Hints: append(hints, unexpanded(text)...)})
}

// warn notes, once, what a rule lets a step do that its writer may not see.
func (c *checker) warn(v value, text, what string) {
	if c.said[said{v.pos, what}] || len(c.warnings) >= maxErrors {
		return
	}
	c.said[said{v.pos, what}] = true
	c.warnings = append(c.warnings, Warning{Line: v.line, Column: v.col, Text: text, What: what})
}

// wrong notes a problem with a value.
func (c *checker) wrong(v value, what, allowed string, hints ...string) {
	c.add(v.pos, what, v.shown(), allowed, hints...)
}

// mistyped notes a value that is not of the type its key has.
func (c *checker) mistyped(name string, v value, want string, hints ...string) {
	if v.kind == nullKind && v.text == "" {
		c.add(v.pos, name+" has no value", "", want, hints...)
		return
	}
	c.wrong(v, fmt.Sprintf("%s is %s", name, v.kind), want, hints...)
}

// document checks the file's own keys and returns the steps.
func (c *checker) document(root value) []*step {
	const allowed = "a map with version, defaults and steps"
	if root.kind == listKind {
		if !c.opt.BareList {
			c.add(root.pos, "the file is a list", "", allowed, "put the list under a line that says steps:")
			return nil
		}
		root = value{pos: root.pos, kind: mapKind, pairs: []pair{{value{pos: root.pos, text: "steps"}, root}}}
	}
	if root.kind != mapKind {
		c.mistyped("the file", root, allowed)
		return nil
	}
	if at, ok := workflow(root); ok {
		c.add(at, "this is a workflow, not a steps file", "", allowed,
			"a job of the workflow runs this program's action, whose input file names the steps file")
		return nil
	}
	base := builtin()
	var steps *pair
	for i, p := range root.pairs {
		switch p.key.text {
		case "version":
			c.version(p.val)
		case "defaults":
			if p.val.kind != mapKind {
				c.mistyped("defaults", p.val, "a map of keys of a step")
				continue
			}
			c.keys(base, p.val, true)
		case "steps":
			steps = &root.pairs[i]
		default:
			c.unknown(p.key, "", []string{"version", "defaults", "steps"})
		}
	}
	switch {
	case steps == nil:
		c.add(root.pos, "the file has no steps", "", "steps: and a list")
		return nil
	case steps.val.kind != listKind:
		c.mistyped("steps", steps.val, "a list of steps")
		return nil
	case len(steps.val.items) == 0:
		c.wrong(steps.val, "steps is empty", "at least one step")
		return nil
	case len(steps.val.items) > maxSteps:
		c.add(steps.val.pos, "too many steps", fmt.Sprint(len(steps.val.items)), fmt.Sprintf("at most %d", maxSteps))
		return nil
	}
	c.stepsAt = steps.key.pos
	list := make([]*step, 0, len(steps.val.items))
	for i, item := range steps.val.items {
		if item.kind != mapKind {
			c.mistyped(fmt.Sprintf("step %d", i+1), item, "a map of keys, such as run: and a script")
			continue
		}
		s := base.copy(item.pos)
		c.keys(s, item, false)
		c.together(s)
		list = append(list, s)
	}
	c.ids(list)
	c.needs(list)
	c.kernels(list)
	c.only(steps.key.pos, list)
	return list
}

func (c *checker) version(v value) {
	if v.kind != intKind || v.text != "1" {
		c.wrong(v, "this version of the format is not known", "1")
	}
}

// builtin is a step with our own defaults.
func builtin() *step {
	zero := 0
	return &step{
		Language: "sh", Image: "host", Workdir: box.WorkspaceTarget,
		MemoryMb: defaultMemoryMb, Pids: defaultPids, TimeoutS: defaultTimeoutS, RequireLimits: true,
		CapDrop: []string{"ALL"}, MaxOutputBytes: defaultOutput, TrackFiles: true,
		DepsReadonly: true, EnforceLimits: true,
		DiskMb: defaultDiskMb, AllowChanges: []string{"**"}, OnFailure: OnFailureDiscard,
		Expect:  expectation{ExitCode: &zero},
		written: map[string]value{}, own: map[string]value{}, bad: map[string]bool{},
	}
}

// copy starts a step from defaults. Lists are shared: nobody changes them.
func (s *step) copy(at pos) *step {
	n := *s
	n.at = at
	n.written, n.own, n.bad = maps.Clone(s.written), map[string]value{}, maps.Clone(s.bad)
	return &n
}

// keys reads the keys of a step, or those of defaults.
func (c *checker) keys(s *step, m value, inDefaults bool) {
	where := "a step"
	if inDefaults {
		where = "defaults"
	}
	for _, p := range m.pairs {
		name := p.key.text
		if !inDefaults {
			s.keyAt = append(s.keyAt, KeyPlace{Name: name, Line: p.key.line, Column: p.key.col})
		}
		k, ok := stepKey(name)
		switch {
		case !ok:
			meant := ""
			if f, of := workflowKeys[name]; of {
				c.add(p.key.pos, fmt.Sprintf("unknown key %s in %s", quoted(name), where), "", "", f.instead)
				meant = f.standsFor
			} else {
				meant = c.unknown(p.key, " in "+where, writableKeys(inDefaults))
			}
			if meant != "" {
				s.bad[meant] = true
			}
			continue
		case inDefaults && k.perStep:
			c.add(p.key.pos, name+" cannot stand in defaults", "", "any key of a step but "+strings.Join(perStepKeys(), ", "))
			continue
		}
		before := len(c.errs)
		s.written[name] = p.val
		if !inDefaults {
			s.own[name] = p.val
		}
		delete(s.bad, name)
		if p.val.kind == nullKind && !k.null {
			c.mistyped(name, p.val, k.allowed())
		} else {
			k.read(c, k, p.val, s)
		}
		if len(c.errs) > before {
			s.bad[name] = true
		}
	}
}

// maxMeant bounds how many wrong words we look for neighbours of: thousands of
// words against thousands of ids would take minutes.
const maxMeant = 20

// meant is the hint for a word that is nearly one of ours.
func (c *checker) meant(word string, words []string) []string {
	return didYouMean(c.nearest(word, words))
}

func didYouMean(word string) []string {
	if word == "" {
		return nil
	}
	return []string{"did you mean " + word + "?"}
}

// nearest is the one of our words that is nearly this one; "" if none is.
func (c *checker) nearest(word string, words []string) string {
	if c.asked++; c.asked > maxMeant {
		return ""
	}
	return Nearest(word, words)
}

// unknown refuses a key that there is not, and says what helps: the key that was
// meant, which it gives, or which keys there are.
func (c *checker) unknown(key value, where string, words []string) (meant string) {
	what := "unknown key " + quoted(key.text) + where
	if meant = c.nearest(key.text, words); meant != "" {
		c.add(key.pos, what, "", "", didYouMean(meant)...)
		return meant
	}
	c.add(key.pos, what, "", strings.Join(words, ", "))
	return ""
}

// workflow says whether a file is a workflow of GitHub Actions, and where that is
// seen: it has jobs, and no steps of its own.
func workflow(root value) (at pos, ok bool) {
	for _, p := range root.pairs {
		switch p.key.text {
		case "steps":
			return pos{}, false
		case "jobs":
			at, ok = p.key.pos, true
		}
	}
	return at, ok
}

// together checks what only several keys show.
func (c *checker) together(s *step) {
	c.what(s)
	c.egressTogether(s)
	c.caps(s)
	c.tmpfs(s)
	c.hostPlaces(s)
	c.cacheTogether(s)
	if v, ok := s.written["workdir"]; ok && s.Workdir == workdirOfImage && s.origin.None() && !s.bad["image"] {
		c.wrong(v, "workdir is that of the image, and the image "+quoted(s.Image)+" names none", "an absolute path in the box without ..; image beside an image of a registry or an archive")
	}
	if v, ok := s.written["expect"]; ok && s.Expect.Fault != "" && slices.Contains(s.Tolerate, s.Expect.Fault) {
		c.wrong(v, fmt.Sprintf("the step tolerates %s, so it can never end with that fault", s.Expect.Fault), "a fault that tolerate does not list")
	}
}

// whatKeys say what a step runs.
var whatKeys = []string{"run", "command", "code"}

// what refuses a step that says nothing to run, or several things.
func (c *checker) what(s *step) {
	one := "exactly one of " + strings.Join(whatKeys, ", ")
	var has []string
	bad := false
	var last pos
	for _, name := range whatKeys {
		bad = bad || s.bad[name]
		v, ok := s.own[name]
		if !ok {
			continue
		}
		has = append(has, name)
		if v.line > last.line || v.line == last.line && v.col > last.col {
			last = v.pos
		}
	}
	switch {
	case len(has) == 2:
		c.add(last, "the step has both "+has[0]+" and "+has[1], "", one)
		return
	case len(has) > 2:
		c.add(last, "the step has all of "+strings.Join(has, ", "), "", one)
		return
	case bad:
		return // said already, of the key that was to say what runs
	case len(has) == 0:
		c.add(s.at, "the step says nothing to run", "", one)
		return
	}
	v, ok := s.own["language"]
	switch {
	case has[0] == "code" && ok && !s.bad["language"] && s.Language != "python":
		c.wrong(v, "code is Python", "python", "write run instead of code for a script in another language")
	case has[0] == "code":
		s.Language = "python" // whatever defaults say of scripts
	case ok && has[0] == "command":
		c.wrong(v, "language is for run, and this step has command", "no language, or run instead of command")
	}
	if has[0] == "code" {
		return
	}
	if v, ok := s.own["kernel"]; ok {
		c.wrong(v, "kernel is for cells, and this step has "+has[0], "no kernel, or code instead of "+has[0])
	}
	s.Kernel = "" // whatever defaults say of cells
}

// caps refuses "no cap" where a cap is required.
func (c *checker) caps(s *step) {
	for _, name := range []string{"memoryMb", "pids"} {
		v, ok := s.written[name]
		if !ok || v.kind != nullKind || !s.RequireLimits || s.bad["requireLimits"] {
			continue
		}
		k, _ := stepKey(name)
		c.wrong(v, name+" is null, which is no cap, and requireLimits is true", k.allowed(),
			"write a number, or requireLimits: false to run without the cap")
	}
}

// tmpfs compares the sizes with the cap they count against, and the places with
// the mounts: a file system in memory would lie on top and hide them.
func (c *checker) tmpfs(s *step) {
	if s.bad["memoryMb"] || s.bad["tmpfs"] || s.bad["mounts"] {
		return
	}
	for _, t := range s.Tmpfs {
		if s.MemoryMb > 0 && t.bytes > s.MemoryMb<<20 {
			c.add(t.at, "the tmpfs "+quoted(t.target)+" is larger than the step's memory", t.size, fmt.Sprintf("at most memoryMb, which is %d", s.MemoryMb),
				"it counts against memoryMb; raise that too")
		}
		for _, m := range s.Mounts {
			if within(m.Target, t.target) {
				c.add(t.at, fmt.Sprintf("the tmpfs %s would hide the mount at %s", quoted(t.target), quoted(m.Target)), "", "places that do not cover each other")
			}
		}
	}
}

// ids fills in default ids and refuses one that is taken.
func (c *checker) ids(list []*step) {
	first := make(map[string]*step, len(list))
	for _, s := range list {
		v, ok := s.own["id"]
		if !ok || s.bad["id"] {
			continue
		}
		if other, taken := first[s.ID]; taken {
			c.wrong(v, "id "+quoted(s.ID)+" is taken", "an id that no other step has", fmt.Sprintf("the step on line %d has it", other.at.line))
			continue
		}
		first[s.ID] = s
	}
	for i, s := range list {
		if _, ok := s.own["id"]; ok {
			continue
		}
		s.ID = fmt.Sprintf("step-%d", i+1)
		if other, taken := first[s.ID]; taken {
			c.wrong(other.own["id"], "id "+quoted(s.ID)+" is taken", "an id that no other step has",
				fmt.Sprintf("the step on line %d has it by default", s.at.line))
		}
	}
}

// needs refuses needs of steps that do not exist, and rings of needs.
func (c *checker) needs(list []*step) {
	byID, byName := make(map[string]*step, len(list)), map[string]*step{}
	var ids []string
	for _, s := range list {
		byID[s.ID] = s
		if name := s.own["name"].text; name != "" && !s.bad["name"] && byName[name] == nil {
			byName[name] = s
		}
		ids = append(ids, s.ID)
	}
	others := "ids of other steps: " + someOf(once(ids))
	const onPath, done = 1, 2
	state := make(map[*step]int, len(list))
	var path []string
	var visit func(*step)
	visit = func(s *step) {
		state[s] = onPath
		path = append(path, s.ID)
		for i, id := range s.Needs {
			next, ok := byID[id]
			switch {
			case !ok:
				hints := c.meant(id, ids)
				if named := byName[id]; named != nil {
					hints = []string{called(named)}
				}
				c.add(s.needAt(i), "needs names no step of this file", id, others, hints...)
			case state[next] == onPath:
				ring := append(slices.Clone(path[slices.Index(path, id):]), id)
				c.add(s.needAt(i), "needs go round in a ring", id, "steps that can be put in an order", "the ring: "+inert(someOfPath(ring)))
			case state[next] == 0:
				visit(next)
			}
		}
		path = path[:len(path)-1]
		state[s] = done
	}
	for _, s := range list {
		if state[s] == 0 {
			visit(s)
		}
	}
}

// called is the hint for who takes a step's name for its id.
func called(s *step) string {
	text := fmt.Sprintf("that is the name of the step on line %d, whose id is %s; needs takes ids", s.at.line, inert(s.ID))
	if _, own := s.own["id"]; !own {
		text += ", so write id: in that step"
	}
	return text
}

// needAt is where the i-th id of needs stands.
func (s *step) needAt(i int) pos {
	v := s.own["needs"]
	if v.kind == listKind && i < len(v.items) {
		return v.items[i].pos
	}
	return v.pos
}

func (c *checker) only(at pos, list []*step) {
	var ids []string
	for _, s := range list {
		ids = append(ids, s.ID)
	}
	for _, id := range c.opt.Only {
		if !slices.Contains(ids, id) {
			c.add(at, "no step has the id "+quoted(id)+" that was asked for", "", "ids: "+someOf(once(ids)), c.meant(id, ids)...)
		}
	}
}

// once is a list without what was in it before: an id that two steps have is
// refused elsewhere.
func once(list []string) []string {
	seen := map[string]bool{}
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool {
		was := seen[s]
		seen[s] = true
		return was
	})
}

// maxListed bounds how many ids an error repeats.
const maxListed = 20

// someOf lists ids for an error.
func someOf(ids []string) string {
	more := ""
	if n := len(ids) - maxListed; n > 0 {
		ids, more = ids[:maxListed], fmt.Sprintf(" and %d more", n)
	}
	shown := make([]string, len(ids))
	for i, id := range ids {
		shown[i] = inert(id)
	}
	return strings.Join(shown, ", ") + more
}

func someOfPath(ids []string) string {
	if n := len(ids) - maxListed; n > 0 {
		ids = append(append(slices.Clone(ids[:maxListed/2]), fmt.Sprintf("(%d more)", n)), ids[len(ids)-maxListed/2:]...)
	}
	return strings.Join(ids, " -> ")
}
