package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/host"
	"github.com/untrusted-steps/untrusted-steps/internal/report"
	"github.com/untrusted-steps/untrusted-steps/internal/session"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// kind is what the value of a flag, or an operand, is: what a shell offers for it.
type kind int

const (
	anyText kind = iota
	aFile
	aFolder
	aWord     // one of words
	someIDs   // ids of steps, separated by commas
	someWords // of words, separated by commas
)

// flagDef is one flag, and all there is to say of it: it is parsed, explained and
// completed by what stands here.
type flagDef struct {
	name, arg string // without arg it is there or not
	does      string // sentences; the first of them is shown by a shell
	def       string // what is taken where it is not given
	without   string // what holds then, where that is no value
	required  bool
	kind      kind
	words     func() []string
	also      []string // what others call it
	set       func(o *options, value string) error
}

// The flags. A verb that gives one another meaning says so with saying.
var (
	flagWorkspace = flagDef{
		name: "workspace", arg: "DIR", kind: aFolder, without: "the current folder", also: []string{"dir", "directory", "chdir", "cwd"},
		does: "The folder the steps work in. They see it as /workspace, through a layer of their own.",
		set:  text(func(o *options) *string { return &o.workspace }),
	}
	flagOut = flagDef{
		name: "out", arg: "DIR", kind: aFolder, without: "a new folder in the temporary one", also: []string{"output", "report", "report-dir"},
		does: "The folder for the report, outside the workspace. What is ours in it is replaced, nothing else is touched.",
		set:  text(func(o *options) *string { return &o.out }),
	}
	flagEngine = flagDef{
		name: "engine", arg: "NAME", kind: aWord, words: session.EngineNames, def: "auto", also: []string{"runtime", "backend"},
		does: "What builds the boxes. auto takes kern if it is installed and passes a probe box here, else native; the report says which and why. " +
			"One that is named is never replaced by another. gvisor has to be named: it gives each box a kernel of its own.",
		set: text(func(o *options) *string { return &o.engine }),
	}
	flagJobs = flagDef{
		name: "jobs", arg: "N", def: "1", also: []string{"parallel", "concurrency", "j"},
		does: fmt.Sprintf("How many steps run at a time, from 1 to %d. With 1 each step sees what the ones before it committed; with more, "+
			"steps that do not need each other run side by side, each on the state it began with.", maxJobs),
		set: number(func(o *options) *int { return &o.jobs }),
	}
	flagPolicy = flagDef{
		name: "policy", arg: "FILE", kind: aFile, without: "no bound",
		does: "Refuse a steps file that asks for more than this file allows, with the line in both files.",
		set:  text(func(o *options) *string { return &o.policy }),
	}
	flagDefaults = flagDef{
		name: "defaults", arg: "FILE", kind: aFile, without: "those of a steps file that says nothing",
		does: "A steps file with defaults and no steps: what every box is like. It must not lie in the workspace.",
		set:  text(func(o *options) *string { return &o.defaults }),
	}
	flagOnly = flagDef{
		name: "only", arg: "ID,...", kind: someIDs, without: "all steps", also: []string{"step", "steps", "select", "filter"},
		does: "These steps only. What they need of others is not run.",
		set:  text(func(o *options) *string { return &o.only }),
	}
	flagShard = flagDef{
		name: "shard", arg: "I/N", without: "all of the plan", also: []string{"part", "split"},
		does: fmt.Sprintf("Part I of N of the plan, counted from 1, at most %d parts. The others are for other machines; merge makes one report of all.", steps.MaxShards),
		set:  text(func(o *options) *string { return &o.shard }),
	}
	flagDurations = flagDef{
		name: "durations", arg: "FILE", kind: aFile, without: "every step counts the same",
		does: "A report.json by whose times the plan is split into parts. It must be the same for every part.",
		set:  text(func(o *options) *string { return &o.durations }),
	}
	flagOnlyReport = flagDef{
		name: "only-report", also: []string{"no-commit", "report-only"},
		does: "Run everything and leave the workspace as it is. The report has what would have been changed.",
		set:  yes(func(o *options) *bool { return &o.onlyReport }),
	}
	flagJSON = flagDef{
		name: "json",
		does: "report.json on standard output, and the log on standard error.",
		set:  yes(func(o *options) *bool { return &o.json }),
	}
	flagKernSHA256 = flagDef{
		name: "kern-sha256", arg: "HEX", without: "the sums that this version knows",
		does: "Accept the kern binary that has this SHA-256. The report says so.",
		set:  sum(func(o *options) *string { return &o.kernSHA256 }),
	}
	flagRunscSHA256 = flagDef{
		name: "runsc-sha256", arg: "HEX", without: "the sums that this version knows",
		does: "Accept the runsc binary, of engine gvisor, that has this SHA-256. The report says so.",
		set:  sum(func(o *options) *string { return &o.runscSHA256 }),
	}
	flagFreshProof = flagDef{
		name: "fresh-proof", also: []string{"prove", "reprove", "prove-again", "no-cache"},
		does: "Prove every control anew, whatever is remembered of this boot, and remember what comes of it.",
		set:  yes(func(o *options) *bool { return &o.freshProof }),
	}
	flagAllowEvents = flagDef{
		name: "allow-events", arg: "EVENT,...", kind: someWords, words: func() []string { return privileged }, without: "none of them",
		does: "Run for these events of GitHub Actions all the same. Their jobs hold the base repository's secrets, so without it they are refused: " +
			strings.Join(privileged, ", ") + ".",
		set: text(func(o *options) *string { return &o.allowEvents }),
	}
	flagHostSetup = flagDef{
		name: "host-setup", arg: "WORD", kind: aWord, words: setupWords, def: string(host.SetupOff), also: []string{"prepare", "setup"},
		does: "What may be added to this machine for the run. off adds nothing; auto adds the least that is missing, by the user's systemd or passwordless " +
			"sudo, and takes it away at the end; sysctl lets all programs use user namespaces where AppArmor forbids it.",
		set: text(func(o *options) *string { return &o.hostSetup }),
	}
	flagFile = flagDef{
		name: "file", arg: "FILE", kind: aFile, without: "the shards are held to each other only",
		does: "The steps file that all shards must be of. Without it a shard that is missing is known by the others' count.",
		set:  text(func(o *options) *string { return &o.file }),
	}
	flagFormat = flagDef{
		name: "format", arg: "NAME", kind: aWord, words: formatNames, required: true, also: []string{"as", "to"},
		does: "The form to write: report.json itself, the Markdown of the job summary, the table of a terminal, a JUnit or SARIF file, or a page for a browser.",
		set:  text(func(o *options) *string { return &o.format }),
	}
)

func setupWords() []string {
	return []string{string(host.SetupOff), string(host.SetupAuto), string(host.SetupSysctl)}
}

// planFlags are those of plan, and of run.
var planFlags = []flagDef{
	flagWorkspace, flagOut, flagEngine, flagJobs, flagPolicy, flagOnly, flagShard, flagDurations, flagOnlyReport, flagJSON,
	flagKernSHA256, flagRunscSHA256, flagFreshProof, flagAllowEvents, flagHostSetup,
}

// saying is the same flag with another explanation.
func (f flagDef) saying(does string) flagDef {
	f.does = does
	return f
}

// or is the same flag with another default.
func (f flagDef) or(def string) flagDef {
	f.def = def
	return f
}

// must is the same flag where the verb cannot do without it.
func (f flagDef) must() flagDef {
	f.without, f.def, f.required = "", "", true
	return f
}

// of is a list of flags in which some stand for those of the same name.
func of(list []flagDef, other ...flagDef) []flagDef {
	out := append([]flagDef{}, list...)
	for _, o := range other {
		for i := range out {
			if out[i].name == o.name {
				out[i] = o
			}
		}
	}
	return out
}

func formatNames() (names []string) {
	for _, f := range report.Formats {
		names = append(names, f.Name)
	}
	return names
}

func text(field func(*options) *string) func(*options, string) error {
	return func(o *options, value string) error {
		*field(o) = value
		return nil
	}
}

// sum is a SHA-256 in hexadecimal. Anything else would match nothing, in silence.
func sum(field func(*options) *string) func(*options, string) error {
	return func(o *options, value string) error {
		if b, err := hex.DecodeString(value); err != nil || len(b) != sha256.Size {
			return errors.New("it is a SHA-256, of 64 hexadecimal digits, as sha256sum prints it")
		}
		*field(o) = strings.ToLower(value)
		return nil
	}
}

func yes(field func(*options) *bool) func(*options, string) error {
	return func(o *options, value string) (err error) {
		if *field(o), err = strconv.ParseBool(value); err != nil {
			return errors.New("it is there or not, or =true or =false")
		}
		return nil
	}
}

func number(field func(*options) *int) func(*options, string) error {
	return func(o *options, value string) error {
		n, err := strconv.Atoi(value)
		if err != nil {
			return errors.New("that is no whole number")
		}
		*field(o) = n
		return nil
	}
}

// argument is a word of a command line as it is understood: an operand, or a flag with what
// belongs to it.
type argument struct {
	flag     *flagDef // nil: an operand, or a flag that the verb does not have
	name     string   // of a flag; "" is an operand
	written  string   // the same with its dashes
	value    string
	hasValue bool
}

// scan reads arguments as a verb understands them. Flags may stand anywhere, with
// one dash or two, and -- ends them. It decides nothing about what is wrong.
func (v *verb) scan(args []string) (out []argument) {
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if arg == "--" {
			for _, rest := range args[i+1:] {
				out = append(out, argument{value: rest, hasValue: true})
			}
			return out
		}
		if len(arg) < 2 || arg[0] != '-' {
			out = append(out, argument{value: arg, hasValue: true})
			continue
		}
		var t argument
		t.name, t.value, t.hasValue = strings.Cut(strings.TrimPrefix(arg[1:], "-"), "=")
		t.written = strings.TrimSuffix(arg, "="+t.value)
		t.flag = v.flag(t.name)
		if t.flag != nil && !t.hasValue {
			switch {
			case t.flag.arg == "":
				t.value, t.hasValue = "true", true
			case i+1 < len(args):
				i++
				t.value, t.hasValue = args[i], true
			}
		}
		out = append(out, t)
	}
	return out
}

func (v *verb) flag(name string) *flagDef {
	for i := range v.flags {
		if v.flags[i].name == name {
			return &v.flags[i]
		}
	}
	return nil
}

// usageError is what is wrong with a command line, and what to do next.
type usageError struct{ what, next string }

func (e *usageError) Error() string { return e.what }

// misuse is a usageError whose next step is to read how the verb is used.
func (v *verb) misuse(format string, args ...any) error {
	return &usageError{v.name + ": " + fmt.Sprintf(format, args...), seeHelp(v.name)}
}

func seeHelp(verb string) string {
	if verb == "help" {
		return listHelp
	}
	return fmt.Sprintf("%s help %s shows how it is used", toolName, verb)
}

// listHelp is where to read which verbs there are.
const listHelp = toolName + " help lists what there is"

// errHelp is the error of who asks for help.
var errHelp = errors.New("help was asked for")

// parse reads the arguments of a verb. The error is errHelp or a usageError.
func (v *verb) parse(args []string) (options, error) {
	o := options{verb: v.name}
	for _, f := range v.flags {
		if f.def == "" {
			continue
		}
		if err := f.set(&o, f.def); err != nil {
			return o, v.misuse("the default of --%s: %v", f.name, err)
		}
	}
	given := map[string]bool{}
	for _, t := range v.scan(args) {
		if t.name == "" {
			o.operands = append(o.operands, t.value)
			continue
		}
		if t.name == "h" || t.name == "help" {
			return o, errHelp
		}
		if err := v.take(&o, t); err != nil {
			return o, err
		}
		given[t.name] = true
	}
	if err := v.count(&o); err != nil {
		return o, err
	}
	for _, f := range v.flags {
		if f.required && !given[f.name] {
			return o, v.misuse("--%s is missing%s", f.name, choices("; it is one of ", f.words))
		}
	}
	return o, nil
}

// take sets what one flag asks for.
func (v *verb) take(o *options, t argument) error {
	f := t.flag
	switch {
	case f == nil:
		return v.unknownFlag(t)
	case !t.hasValue:
		return v.misuse("--%s needs a value: --%s %s", f.name, f.name, f.arg)
	case f.arg != "" && t.value == "":
		// A variable of a script that is not set, as a rule. A policy or a list of steps
		// that is silently none would open the gate.
		return v.misuse("--%s has an empty value; leave the flag out if that is meant", f.name)
	case f.kind == aWord && !slices.Contains(f.words(), t.value):
		return v.misuse("--%s %s: %s", f.name, t.value, notAmong(t.value, f.words()))
	}
	if err := f.set(o, t.value); err != nil {
		return v.misuse("--%s %s: %v", f.name, t.value, err)
	}
	return nil
}

// unknownFlag says what was probably meant: a flag of this verb, or this flag of
// another.
func (v *verb) unknownFlag(t argument) error {
	name := t.name
	var names, others []string
	also := map[string]string{}
	for _, f := range v.flags {
		names = append(names, f.name)
		for _, a := range f.also {
			also[a] = f.name
		}
	}
	for _, o := range verbs() {
		if f := o.flag(name); f != nil && !o.hidden {
			others = append(others, o.name)
		}
	}
	meant := didYouMean(name, names, "--")
	if n, ok := also[name]; ok {
		meant = "; did you mean --" + n + "?"
	}
	switch {
	case meant == "" && len(others) > 0:
		meant = "; " + strings.Join(others, ", ") + noun(len(others), " has it", " have it")
	case meant == "" && len(names) == 0:
		meant = ", nor any other"
	}
	return v.misuse("there is no flag %s%s", t.written, meant)
}

// didYouMean names the word that is nearest to one that there is not.
func didYouMean(word string, words []string, dashes string) string {
	if w := steps.Nearest(word, words); w != "" {
		return "; did you mean " + dashes + w + "?"
	}
	return ""
}

// notAmong says what could stand in place of a word that cannot.
func notAmong(word string, words []string) string {
	return "it is one of " + strings.Join(words, ", ") + didYouMean(word, words, "")
}

// choices lists words behind a lead; nothing if there are none.
func choices(lead string, words func() []string) string {
	if words == nil {
		return ""
	}
	return lead + strings.Join(words(), ", ")
}

// count holds the operands to what the verb takes.
func (v *verb) count(o *options) error {
	n := len(o.operands)
	if v.takes == nil {
		if n > 0 {
			return &usageError{fmt.Sprintf("%s takes no argument, and %q is one", v.name, o.operands[0]), seeHelp(v.name)}
		}
		return nil
	}
	t := v.takes
	bad := func(format string, args ...any) error {
		return &usageError{v.name + " takes " + fmt.Sprintf(format, args...), seeHelp(v.name)}
	}
	switch {
	case t.kind == aWord && (n > 1 || n == 0 && !t.optional || n == 1 && !slices.Contains(t.words(), o.operands[0])):
		some, meant := "one of the words ", ""
		if t.optional {
			some = "nothing, or one of the words "
		}
		if n == 1 {
			meant = didYouMean(o.operands[0], t.words(), "")
		}
		return bad("%s%s", choices(some, t.words), meant)
	case t.kind == aWord:
	case t.many && n == 0:
		return bad("one %s or more", t.name)
	case !t.many && n != 1:
		return bad("one %s, not %d", t.name, n)
	case !t.many:
		o.file = o.operands[0]
	}
	return nil
}

// parse reads the arguments of a verb of the table. ok is false when code is the
// exit status.
func (a *app) parse(name string, args []string) (o options, code int, ok bool) {
	v := verbOf(name)
	o, err := v.parse(args)
	var wrong *usageError
	switch {
	case err == nil:
		return o, 0, true
	case errors.As(err, &wrong):
		return o, a.next(a.wrong("%s", wrong.what), wrong.next), false
	}
	return o, a.print(v.help()), false
}
