package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// setup is one kind of host, and who is there.
type setup struct {
	name    string
	user    string
	manager bool // a user manager runs for the user
	denied  bool // capabilities are denied in user namespaces
}

var (
	rootService   = setup{name: "root in a system service", user: "root"}
	runnerManager = setup{name: "runner, with a user manager", user: "runner", manager: true}
	runnerAlone   = setup{name: "runner, without a user manager", user: "runner"}
	runnerDenied  = setup{name: "runner, capabilities denied", user: "runner", manager: true, denied: true}
)

// file is the row as guest/perform reads it.
func (r row) file() string {
	say := map[bool]string{true: "yes", false: "no"}
	return fmt.Sprintf("user=%s\nmanager=%s\ndenied=%s\nkern=%s\n", r.setup.user, say[r.setup.manager], say[r.setup.denied], say[r.engine == "kern"])
}

// way is how the product is started there.
type way string

const (
	asItComes way = "as it comes"
	inScope   way = "in a delegated scope"
	asTold    way = "by the words of the refusal"
	hostSetup way = "--host-setup auto"
	ownRules  way = "with an AppArmor profile of its own"
)

// refusal are words that the message of a refusal must have.
type refusal []string

// row is a set-up, a way and an engine, and what is wanted of it. Each is run in
// a machine of its own.
type row struct {
	setup  setup
	way    way
	engine string
	refuse refusal // empty: it is to run, and to pass
	facts  bool    // whether the conformance suite runs too
	smoke  bool    // whether it is among the few that CI runs
}

func (r row) String() string { return fmt.Sprintf("%s | %s | %s", r.setup.name, r.way, r.engine) }

var engines = []string{"native", "kern"}

// rows is the whole matrix.
func rows() []row {
	var all []row
	for _, e := range engines {
		all = append(all,
			row{setup: rootService, way: asItComes, engine: e, facts: true, smoke: e == "kern"},
			row{setup: runnerManager, way: asItComes, engine: e, refuse: refusal{
				"cgroup2 is here, but nothing of it is delegated to user 1001", "systemd-run --user --scope --quiet -p Delegate=yes -- "}},
			row{setup: runnerManager, way: asTold, engine: e},
			row{setup: runnerManager, way: inScope, engine: e, facts: true, smoke: e == "native"},
			row{setup: runnerManager, way: hostSetup, engine: e},
			row{setup: runnerAlone, way: asItComes, engine: e, refuse: refusal{
				"cgroup2 is here, but nothing of it is delegated to user 1001", "sudo loginctl enable-linger 1001"}},
			row{setup: runnerAlone, way: asTold, engine: e},
			row{setup: runnerAlone, way: hostSetup, engine: e},
			row{setup: runnerDenied, way: inScope, engine: e, refuse: refusal{"AppArmor"}},
			row{setup: runnerDenied, way: ownRules, engine: e},
			row{setup: runnerDenied, way: hostSetup, engine: e},
		)
	}
	return all
}

// check is one command in a machine.
type check struct {
	name    string // also of its folder
	command string // for bash
	limit   time.Duration
	judge   func(result) verdict
}

const program = "/usr/local/bin/untrusted-steps"

// checks are those of a row. smoke leaves out most of the suite.
func (r row) checks(smoke bool) []check {
	run := []string{program, "run", "--engine", r.engine, "--out", `"$HOME/report"`, "quickstart.yml"}
	switch r.way {
	case hostSetup:
		run = slices.Insert(run, 2, "--host-setup", "auto")
	case asTold:
		// Without flags, which the words might not repeat: where there is no kern
		// the engine is native, and the report's place is printed.
		run = []string{program, "run", "quickstart.yml"}
	}
	first := check{name: "quickstart", command: r.started(line(run)), limit: 10 * time.Minute, judge: passes(r.engine)}
	if len(r.refuse) > 0 {
		first.judge = refuses(r.refuse)
	}
	list := []check{first}
	if r.facts {
		list = append(list, r.suite(smoke))
	}
	return list
}

// smokeGroups are the groups of facts that CI measures: what depends on the kind
// of host most.
const smokeGroups = "^(files|network|limits)$"

// suite is the conformance suite of the engine, as the user of the set-up. The
// suite's own second run, as a user whom root gives a group, is left to hosts
// that are quick: here runner is there in person.
func (r row) suite(smoke bool) check {
	as, limit := "^as_a_normal_user$", 60*time.Minute
	if r.setup.user == "root" {
		as = "^as_root$"
	}
	run := "^TestConformance$/" + as
	if smoke {
		run += "/" + smokeGroups
		limit = 10 * time.Minute
	}
	words := []string{"/work/" + r.engine + ".test", "-test.v", "-test.timeout", limit.String(), "-test.run", quote(run)}
	if skip := skips(as); skip != "" {
		words = append(words, "-test.skip", quote(skip))
	}
	require := "export BOXTEST_PATIENCE=10 BOX_REQUIRE=" + quote(strings.Join(r.needs(), ",")) + "\n"
	// The suite ends itself first, and says where it was.
	return check{name: "conformance", command: require + r.started(line(words)), limit: limit + time.Minute, judge: holds}
}

// quote is a word without quotes in it, for a shell.
func quote(word string) string { return "'" + word + "'" }

// needs is what no test may be skipped for.
func (r row) needs() []string {
	n := []string{"userns", "overlay", "seccomp", "limits", "cpu", "python3", "curl", "setid", "devices", "ipv6"}
	if r.engine == "kern" {
		n = append(n, "kern")
	}
	if r.setup.user == "root" {
		n = append(n, "root", "idmap", "loop", "address")
	}
	return n
}

func line(words []string) string { return strings.Join(words, " ") }

// started is a command in the way of the row.
func (r row) started(command string) string {
	switch r.way {
	case ownRules:
		return allowed + row{way: inScope}.started(command)
	case inScope:
		return "export XDG_RUNTIME_DIR=/run/user/$(id -u)\nexec systemd-run --user --scope --quiet -p Delegate=yes -- " + command + "\n"
	case asTold:
		return told(command)
	}
	return "exec " + command + "\n"
}

// allowed gives the program what Ubuntu gives to those it trusts. It is the control:
// where this helps, it is AppArmor that refused.
const allowed = `sudo tee /etc/apparmor.d/untrusted-steps >/dev/null <<'PROFILE'
abi <abi/4.0>,
profile untrusted-steps ` + program + ` flags=(unconfined) {
  userns,
}
PROFILE
sudo apparmor_parser -r /etc/apparmor.d/untrusted-steps || exit 98
`

// told runs a command, which must be refused, and then types what the refusal
// says: its first advice, up to the next that is introduced by a word.
func told(command string) string {
	return command + ` 2>"$HOME/refusal"
status=$?
cat "$HOME/refusal" >&2
[ $status = 3 ] || { echo "vm: not refused, but exit status $status" >&2; exit 99; }
sed -n '/^  # or /q; s/^  try: //p' "$HOME/refusal" >"$HOME/advice"
echo "vm: typing:" >&2
cat "$HOME/advice" >&2
bash "$HOME/advice" >"$HOME/said"
status=$?
cat "$HOME/said"
report=$(sed -n 's/^report: *//p' "$HOME/said")
[ -z "$report" ] || install -D "$report" "$HOME/report/report.json"
exit $status
`
}
