package main

import (
	"fmt"
	"strings"
	"time"
)

// setup is one kind of host, and who is there.
type setup struct {
	name    string
	user    string
	manager bool // a user manager runs for the user
	denied  bool // capabilities are denied in user namespaces, by a profile
	setting bool // the same, by the machine's setting
}

var (
	rootService   = setup{name: "root in a system service", user: "root"}
	runnerManager = setup{name: "runner, with a user manager", user: "runner", manager: true}
	runnerAlone   = setup{name: "runner, without a user manager", user: "runner"}
	runnerDenied  = setup{name: "runner, capabilities denied", user: "runner", manager: true, denied: true}
	runnerSetting = setup{name: "runner, restricted by the setting", user: "runner", manager: true, setting: true}
)

// file is the row as guest/perform reads it.
func (r row) file() string {
	say := map[bool]string{true: "yes", false: "no"}
	return fmt.Sprintf("user=%s\nmanager=%s\ndenied=%s\nsetting=%s\nkern=%s\nrunsc=%s\n",
		r.setup.user, say[r.setup.manager], say[r.setup.denied], say[r.setup.setting], say[r.engine == "kern"], say[r.engine == ownKernel])
}

// way is how the product is started there.
type way string

const (
	asItComes way = "as it comes"
	inScope   way = "in a delegated scope"
	asTold    way = "by the words of the refusal"
	hostSetup way = "--host-setup auto"
	prepared  way = "after prepare, undone at the end"
	ownRules  way = "with an AppArmor profile of its own"
	confined  way = "a step in an AppArmor profile"
	lifted    way = "--host-setup sysctl"
	bySetting way = "after prepare --host-setup sysctl, undone at the end"
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
	doctor bool    // whether doctor is asked too
	finds  []find  // what it is to find; empty: that a full box runs
	smoke  bool    // whether it is among the few that CI runs
}

// find is what doctor is to say of a check that failed: words of the cause, and a
// line to type.
type find struct{ check, found, fix string }

func (r row) String() string { return fmt.Sprintf("%s | %s | %s", r.setup.name, r.way, r.engine) }

// engines have every row.
var engines = []string{"native", "kern"}

// ownKernel is the engine whose boxes have a kernel of their own. A start of one takes
// seconds here, so it has the quickstart where hosts differ, and the suite on real ones.
const ownKernel = "gvisor"

// Causes for which runner is refused, and what both the refusal and doctor say helps.
const (
	notDelegated = "cgroup2 is here, but nothing of it is delegated to user 1001"
	takeScope    = "systemd-run --user --scope --quiet -p Delegate=yes -- "
	takeLinger   = "sudo loginctl enable-linger 1001"
	takeSetup    = "untrusted-steps run --host-setup auto FILE"
	takeSetting  = "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
)

// rows is the whole matrix.
func rows() []row {
	var all []row
	denies := find{"user-namespaces", "AppArmor denies every capability in it", takeSetup}
	for _, e := range engines {
		all = append(all,
			row{setup: rootService, way: asItComes, engine: e, facts: true, doctor: true, smoke: e == "kern"},
			row{setup: rootService, way: confined, engine: e},
			row{setup: runnerManager, way: asItComes, engine: e, refuse: refusal{notDelegated, takeScope},
				doctor: true, finds: []find{{"control-groups", notDelegated, takeScope}, {"control-groups", notDelegated, takeSetup}}},
			row{setup: runnerManager, way: asTold, engine: e},
			row{setup: runnerManager, way: inScope, engine: e, facts: true, smoke: e == "native"},
			row{setup: runnerManager, way: hostSetup, engine: e},
			row{setup: runnerManager, way: prepared, engine: e, doctor: true},
			row{setup: runnerManager, way: confined, engine: e},
			row{setup: runnerAlone, way: asItComes, engine: e, refuse: refusal{notDelegated, takeLinger},
				doctor: true, finds: []find{{"control-groups", notDelegated, takeLinger}, {"control-groups", notDelegated, takeSetup}}},
			row{setup: runnerAlone, way: asTold, engine: e},
			row{setup: runnerAlone, way: hostSetup, engine: e},
			row{setup: runnerAlone, way: prepared, engine: e, facts: true, doctor: true},
			row{setup: runnerDenied, way: asItComes, engine: e, refuse: refusal{notDelegated, takeScope},
				doctor: true, finds: []find{denies, {"control-groups", notDelegated, takeSetup}}},
			row{setup: runnerDenied, way: inScope, engine: e, refuse: refusal{"AppArmor", takeSetup}, doctor: true, finds: []find{denies}},
			row{setup: runnerDenied, way: ownRules, engine: e},
			row{setup: runnerDenied, way: hostSetup, engine: e},
			row{setup: runnerDenied, way: prepared, engine: e, facts: true, doctor: true},
			row{setup: runnerDenied, way: confined, engine: e},
			row{setup: runnerDenied, way: bySetting, engine: e, refuse: refusal{"it is not the setting kernel.apparmor_restrict_unprivileged_userns that restricts them"}},
			row{setup: runnerSetting, way: asItComes, engine: e, refuse: refusal{notDelegated, takeScope},
				doctor: true, finds: []find{denies, {denies.check, denies.found, takeSetting}}},
			row{setup: runnerSetting, way: inScope, engine: e, refuse: refusal{"AppArmor", takeSetup, takeSetting}},
			row{setup: runnerSetting, way: hostSetup, engine: e},
			row{setup: runnerSetting, way: lifted, engine: e},
			row{setup: runnerSetting, way: prepared, engine: e, doctor: true},
			row{setup: runnerSetting, way: bySetting, engine: e, doctor: true},
		)
	}
	e := ownKernel
	return append(all,
		row{setup: rootService, way: asItComes, engine: e, doctor: true},
		row{setup: runnerManager, way: asItComes, engine: e, refuse: refusal{notDelegated, takeScope}},
		row{setup: runnerManager, way: inScope, engine: e},
		row{setup: runnerManager, way: hostSetup, engine: e},
		row{setup: runnerAlone, way: prepared, engine: e},
		row{setup: runnerDenied, way: inScope, engine: e, refuse: refusal{"AppArmor", takeSetup}},
		row{setup: runnerDenied, way: prepared, engine: e},
	)
}

// quickstart is the file of an engine.
func quickstart(engine string) string {
	if engine == ownKernel {
		return "quickstart-gvisor.yml"
	}
	return "quickstart.yml"
}

// check is one command in a machine.
type check struct {
	name    string // also of its folder
	command string // for bash
	limit   time.Duration
	judge   func(result) verdict
	refused bool // exit status 3 is what is wanted
}

const program = "/usr/local/bin/untrusted-steps"

// checks are those of a row. smoke leaves out most of the suite.
func (r row) checks(smoke bool) []check {
	switch {
	case r.way == confined:
		return r.confinement()
	case r.way == bySetting && len(r.refuse) > 0:
		return []check{{name: "prepare", command: program + " prepare --host-setup sysctl\nstatus=$?\n" + leaving + "exit $status\n", limit: 5 * time.Minute,
			judge: declines(r.refuse), refused: true}}
	}
	run := r.run(quickstart(r.engine))
	if r.way == asTold {
		// Without flags, which the words might not repeat: where there is no kern
		// the engine is native, and the report's place is printed.
		run = []string{program, "run", "quickstart.yml"}
	}
	first := check{name: "quickstart", command: r.started(line(run)), limit: 10 * time.Minute, judge: passes(r.engine)}
	if len(r.refuse) > 0 {
		first.judge, first.refused = refuses(r.refuse), true
	}
	list := []check{first}
	if r.doctor {
		list = append(list, r.diagnosis())
	}
	if r.facts {
		list = append(list, r.suite(smoke))
	}
	return list
}

// run is a run of a steps file, by words of a shell.
func (r row) run(file string) []string {
	words := append([]string{program, "run"}, r.hostSetup()...)
	return append(words, "--engine", r.engine, "--out", `"$HOME/report"`, file)
}

// hostSetup is what a run, and doctor, are told where they have a part to do.
func (r row) hostSetup() []string {
	switch {
	case r.way == hostSetup, r.setup.manager && (r.way == prepared || r.way == bySetting), r.setup.denied && r.way == confined:
		return []string{"--host-setup", "auto"}
	case r.way == lifted:
		return []string{"--host-setup", "sysctl"}
	}
	return nil
}

// diagnosis asks doctor about what the run of the row finds.
func (r row) diagnosis() check {
	words := append([]string{program, "doctor", "--json", "--engine", r.engine}, r.hostSetup()...)
	return check{name: "doctor", command: r.started(line(words)), limit: 5 * time.Minute,
		judge: diagnoses(r.engine, r.finds), refused: len(r.finds) > 0}
}

// confinement is a step in a profile of its own, which is loaded before, beside one
// in none; and a step that names one that nobody has loaded.
func (r row) confinement() []check {
	return []check{
		{name: "confined", command: r.started(line(r.run("/share/guest/confined.yml"))), limit: 5 * time.Minute, judge: confines(r.engine)},
		{name: "not-loaded", command: r.started(line(r.run("/share/guest/not-loaded.yml"))), limit: 5 * time.Minute, refused: true,
			judge: refuses(refusal{"step second: apparmor: no profile vm-no-such-profile is loaded on this host", "apparmor_parser --replace"})},
	}
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
	command := line(words)
	if r.way == prepared && r.setup.denied {
		command = entering + command
	}
	// The suite ends itself first, and says where it was.
	return check{name: "conformance", command: require + r.started(command), limit: limit + time.Minute, judge: holds}
}

// entering starts what follows as a run that found its own copy is started: in a
// scope of the user's manager, and under the profile that prepare made. That lets in
// one program by its path, which the suite is not; so the suite is told to enter it,
// by its name.
const entering = `profile=$(basename -a /etc/apparmor.d/untrusted-steps-"$(id -u)"-*)
export XDG_RUNTIME_DIR=/run/user/$(id -u)
systemd-run --user --scope --quiet -p Delegate=yes -- bash -c 'printf "exec %s" "$0" >/proc/self/attr/apparmor/exec && exec "$@"' "$profile" `

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
	case prepared:
		return fmt.Sprintf(between, "", "", command)
	case bySetting:
		return restricted + fmt.Sprintf(between, " --host-setup sysctl", unrestricted, command) + restricted
	case lifted:
		return restricted + command + "\nstatus=$?\n" + leaving + restricted + "exit $status\n"
	case confined:
		in := asItComes
		if r.setup.manager && !r.setup.denied {
			in = inScope
		}
		return loadProfile + row{way: in}.started(command)
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

// loadProfile makes the profile known that a step names.
const loadProfile = "sudo apparmor_parser --replace --skip-cache /share/guest/step.apparmor || exit 98\n"

// between is a command of a job that prepares the host before and undoes it
// afterwards.
const between = program + ` prepare%s || exit 97
%s%s
status=$?
` + program + ` prepare --undo || exit 95
` + leaving + `[ $status = 0 ] || exit $status
`

// leaving sees that nothing is left: no lease, no group, no copy, no profile.
const leaving = `left=$(
  ls -d /run/untrusted-steps/* /etc/apparmor.d/untrusted-steps-* /usr/local/lib/untrusted-steps/* /var/lib/untrusted-steps/* 2>/dev/null | grep -v /lock
  find /sys/fs/cgroup -name '*untrusted-steps-*'
  sudo grep ^untrusted-steps /sys/kernel/security/apparmor/profiles
)
[ -z "$left" ] || { echo "vm: undone, and there still is: $left" >&2; exit 94; }
`

// restricted sees that the machine's setting is as it came, unrestricted that it is
// not, and that nothing else was made in its place.
const (
	restricted   = "[ \"$(cat /proc/sys/kernel/apparmor_restrict_unprivileged_userns)\" = 1 ] || { echo 'vm: the setting is not 1' >&2; exit 93; }\n"
	unrestricted = `[ "$(cat /proc/sys/kernel/apparmor_restrict_unprivileged_userns)" = 0 ] || { echo 'vm: the setting is not 0' >&2; exit 92; }
! ls -d /etc/apparmor.d/untrusted-steps-* /usr/local/lib/untrusted-steps/* /var/lib/untrusted-steps/* 2>/dev/null || { echo 'vm: there is a copy besides' >&2; exit 91; }
`
)

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
