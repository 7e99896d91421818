package host

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/untrusted-steps/untrusted-steps/internal/limits"
)

const (
	leaseName = "untrusted-steps-0123456789abcdef-4711-99-host-0-host.box"
	sum       = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
	copyDir   = "/usr/local/lib/untrusted-steps/1001-" + sum
)

// lacking is a hosted runner on which nothing works and everything can be added.
func lacking() Facts {
	programs := map[string]string{"systemd-run": "/usr/bin/systemd-run", "sudo": "/usr/bin/sudo", "apparmor_parser": "/usr/sbin/apparmor_parser"}
	for _, n := range []string{"mkdir", "chown", "chmod", "tee", "install", "rm", "rmdir", "setfacl"} {
		programs[n] = "/usr/bin/" + n
	}
	return Facts{
		Setup: SetupAuto, UID: 1001, GID: 118, PID: 4711, Source: "/proc/4711/exe", Name: leaseName, Self: "/home/runner/us", Args: []string{"run", "f.yml"},
		Limits: "cgroup2 is here, but nothing of it is delegated", Scope: "/run/user/1001",
		Namespaces: "make mounts private: permission denied", AppArmor: true, BySetting: true,
		Root: []string{"/usr/bin/sudo", "-n", "--"}, Programs: programs,
		Site:  &limits.Site{Kind: limits.Kind2, Parents: []string{"/sys/fs/cgroup"}, Own: []string{"/sys/fs/cgroup/system.slice/job.service"}},
		Paths: usualPaths, CopyIn: "/usr/local/lib/untrusted-steps", SHA256: sum, Profile: true, Alone: true, Was: "1",
	}
}

// onlyGroups lacks control groups alone.
func onlyGroups() Facts {
	f := lacking()
	f.Namespaces, f.AppArmor, f.BySetting, f.CopyIn, f.SHA256, f.Profile = "", false, false, "", "", false
	return f
}

// onlyNamespaces lacks those alone.
func onlyNamespaces() Facts {
	f := lacking()
	f.Limits, f.Scope, f.Site = "", "", nil
	return f
}

func with(f Facts, change func(*Facts)) Facts {
	change(&f)
	return f
}

// told is a plan as lines: what becomes root's, with what on stdin, in order.
func told(p Steps) []string {
	var out []string
	for _, a := range p.Actions {
		line := strings.Join(a.Argv, " ")
		if a.Stdin != "" {
			line += " <<< " + strings.TrimSpace(strings.ReplaceAll(a.Stdin, "\n", `\n`))
		}
		if a.Sum != nil {
			line += " => " + a.Sum.Path + " is " + a.Sum.SHA256[:8]
		}
		out = append(out, line)
	}
	if p.Exec != nil {
		out = append(out, "exec "+strings.Join(p.Exec, " "))
		out = append(out, p.Env...)
	}
	for _, n := range p.Notes {
		out = append(out, "note: "+n)
	}
	for _, h := range p.Hints {
		out = append(out, "hint: "+h)
	}
	return out
}

const s = "/usr/bin/sudo -n -- /usr/bin/"

var (
	makeGroup = []string{
		s + "mkdir -p -m 0755 /run/untrusted-steps",
		s + "tee /run/untrusted-steps/" + leaseName + ` <<< {"uid":1001,"groups":[{"dir":"/sys/fs/cgroup/` + leaseName + `","from":"/sys/fs/cgroup/system.slice/job.service"}]}\n`,
		s + "chmod 0644 /run/untrusted-steps/" + leaseName,
		s + "mkdir /sys/fs/cgroup/" + leaseName,
		s + "chown 1001:118 /sys/fs/cgroup/" + leaseName + " /sys/fs/cgroup/" + leaseName + "/cgroup.procs /sys/fs/cgroup/" + leaseName + "/cgroup.threads /sys/fs/cgroup/" + leaseName + "/cgroup.subtree_control",
		s + "tee /sys/fs/cgroup/" + leaseName + `/cgroup.procs <<< 4711\n`,
	}
	copyText    = `abi <abi/4.0>,\n\nprofile untrusted-steps-1001-001122334455 ` + copyDir + `/untrusted-steps flags=(unconfined) {\n  userns,\n}\n`
	installCopy = []string{
		s + "mkdir -p -m 0755 /usr/local/lib/untrusted-steps",
		s + "mkdir -p -m 0700 " + copyDir,
		s + "setfacl -m u:1001:--x " + copyDir,
		s + "install -m 0755 -o 0 -g 0 /proc/4711/exe " + copyDir + "/untrusted-steps => " + copyDir + "/untrusted-steps is 00112233",
	}
	makeCopy = append(append([]string{
		s + "mkdir -p -m 0755 /run/untrusted-steps",
		s + "tee /run/untrusted-steps/" + leaseName + ` <<< {"uid":1001,"copy":"1001-` + sum + `"}\n`,
		s + "chmod 0644 /run/untrusted-steps/" + leaseName,
	}, installCopy...), "/usr/bin/sudo -n -- /usr/sbin/apparmor_parser --replace --skip-cache <<< "+copyText)
	execCopy  = []string{"exec " + copyDir + "/untrusted-steps run f.yml", Marker + "=" + leaseName}
	execScope = []string{"exec /usr/bin/systemd-run --user --scope --quiet -p Delegate=yes -- /home/runner/us run f.yml", "XDG_RUNTIME_DIR=/run/user/1001", Marker + "=" + leaseName}
)

func lines(parts ...[]string) (all []string) {
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

func TestPlan(t *testing.T) {
	for _, c := range []struct {
		name string
		f    Facts
		want []string
	}{
		{"nothing that is not asked for", with(lacking(), func(f *Facts) { f.Setup = "" }), nil},
		{"nothing that is switched off", with(lacking(), func(f *Facts) { f.Setup = SetupOff }), nil},
		{"nothing for root", with(lacking(), func(f *Facts) { f.UID, f.Root = 0, []string{} }), nil},
		{"nothing where nothing is missing", with(onlyGroups(), func(f *Facts) { f.Limits = "" }), nil},
		{"a scope of the user's manager, without root", with(onlyGroups(), func(f *Facts) { f.Root, f.RootWhy = nil, "no sudo" }), execScope},
		{"a scope is taken before a group of root's", onlyGroups(), execScope},
		{"a group of root's where no manager answers", with(onlyGroups(), func(f *Facts) { f.Scope, f.ScopeWhy = "", "no user manager answers" }), makeGroup},
		{"controllers that are off are switched on, and stay so", with(onlyGroups(), func(f *Facts) { f.Scope = ""; f.Site.Off = []string{"memory", "pids"} }),
			lines(makeGroup[:3], []string{s + "tee /sys/fs/cgroup/cgroup.subtree_control <<< +memory +pids"}, makeGroup[3:])},
		{"CPU time can be shared out where it could not", with(onlyGroups(), func(f *Facts) { f.Scope = ""; f.Site.Off, f.Site.CPUOff = []string{"memory"}, true }),
			lines(makeGroup[:3], []string{s + "tee /sys/fs/cgroup/cgroup.subtree_control <<< +memory", s + "tee /sys/fs/cgroup/cgroup.subtree_control <<< +cpu"}, makeGroup[3:])},
		{"limits that the process has it keeps", with(onlyGroups(), func(f *Facts) { f.Scope = ""; f.Site.Keep = []limits.Limit{{File: "memory.max", Value: "4294967296"}} }),
			lines(makeGroup[:4], []string{s + "tee /sys/fs/cgroup/" + leaseName + `/memory.max <<< 4294967296\n`}, makeGroup[4:])},
		{"a group in each hierarchy of cgroup1", with(onlyGroups(), func(f *Facts) {
			f.Scope = ""
			f.Site = &limits.Site{Kind: limits.Kind1, Parents: []string{"/c/memory/x", "/c/pids"}, Own: []string{"/c/memory/x", "/c/pids"}}
		}), []string{
			s + "mkdir -p -m 0755 /run/untrusted-steps",
			s + "tee /run/untrusted-steps/" + leaseName + ` <<< {"uid":1001,"groups":[{"dir":"/c/memory/x/` + leaseName + `","from":"/c/memory/x"},{"dir":"/c/pids/` + leaseName + `","from":"/c/pids"}]}\n`,
			s + "chmod 0644 /run/untrusted-steps/" + leaseName,
			s + "mkdir /c/memory/x/" + leaseName + " /c/pids/" + leaseName,
			s + "chown 1001:118 /c/memory/x/" + leaseName + " /c/memory/x/" + leaseName + "/cgroup.procs /c/memory/x/" + leaseName + "/tasks /c/pids/" + leaseName + " /c/pids/" + leaseName + "/cgroup.procs /c/pids/" + leaseName + "/tasks",
			s + "tee /c/memory/x/" + leaseName + "/cgroup.procs /c/pids/" + leaseName + `/cgroup.procs <<< 4711\n`,
		}},
		{"no group without sudo", with(onlyGroups(), func(f *Facts) {
			f.Scope, f.ScopeWhy, f.Root, f.RootWhy = "", "no user manager answers", nil, "sudo does not work without a password"
		}), []string{"note: control groups stay as they are: no user manager answers; sudo does not work without a password"}},
		{"no group where none can be made", with(onlyGroups(), func(f *Facts) {
			f.Scope, f.ScopeWhy, f.Site, f.SiteWhy = "", "no user manager answers", nil, "it is read-only"
		}),
			[]string{"note: control groups stay as they are: no user manager answers; it is read-only"}},
		{"no group by a program that somebody else could have put there", with(onlyGroups(), func(f *Facts) { f.Scope = ""; delete(f.Programs, "chown") }),
			[]string{"note: control groups stay as they are: this machine has no chown that only root can have put there"}},
		{"a program that was started again is not started again", with(onlyGroups(), func(f *Facts) { f.Started = true; f.Root, f.RootWhy = nil, "no sudo" }),
			[]string{"note: control groups stay as they are: this program was started again, and still can cap nothing: cgroup2 is here, but nothing of it is delegated; no sudo"}},
		{"it may still be given a group", with(onlyGroups(), func(f *Facts) { f.Started = true }), makeGroup},

		{"a copy with a profile where AppArmor restricts", onlyNamespaces(), lines(makeCopy, execCopy)},
		{"a copy that is there is not copied again", with(onlyNamespaces(), func(f *Facts) { f.Copied = true }), lines(makeCopy[:3], makeCopy[7:], execCopy)},
		{"one that works and stays is only started", with(onlyNamespaces(), func(f *Facts) { f.Copied, f.Works, f.Kept = true, true, true }), execCopy},
		{"one that works is only started where nobody is root", with(onlyNamespaces(), func(f *Facts) { f.Copied, f.Works, f.Root = true, true, nil }), execCopy},
		{"one that works for another run is held, or it would go with that", with(onlyNamespaces(), func(f *Facts) { f.Copied, f.Works = true, true }), lines(makeCopy[:3], makeCopy[7:], execCopy)},
		{"others may be in the account's group, known to a directory or to the machine's files", with(onlyNamespaces(), func(f *Facts) { f.Alone = false }), lines(makeCopy, execCopy)},
		{"the group may enter, where there is no way to say who of it", with(onlyNamespaces(), func(f *Facts) { f.Alone = false; delete(f.Programs, "setfacl") }), lines(makeCopy[:4], []string{
			s + "mkdir -p -m 0710 " + copyDir, s + "chown 0:118 " + copyDir}, makeCopy[6:], execCopy)},
		{"one that is not ours is not started, whatever works", with(onlyNamespaces(), func(f *Facts) { f.Works = true }), lines(makeCopy, execCopy)},
		{"both, in one start", lacking(), lines(makeCopy, []string{
			"exec /usr/bin/systemd-run --user --scope --quiet -p Delegate=yes -- " + copyDir + "/untrusted-steps run f.yml", "XDG_RUNTIME_DIR=/run/user/1001", Marker + "=" + leaseName,
		})},
		{"both by root", with(lacking(), func(f *Facts) { f.Scope = "" }), lines(
			[]string{makeCopy[0], s + "tee /run/untrusted-steps/" + leaseName + ` <<< {"uid":1001,"groups":[{"dir":"/sys/fs/cgroup/` + leaseName + `","from":"/sys/fs/cgroup/system.slice/job.service"}],"copy":"1001-` + sum + `"}\n`},
			makeCopy[2:], makeGroup[3:], execCopy)},
		{"no profile without sudo", with(onlyNamespaces(), func(f *Facts) { f.Root, f.RootWhy = nil, "no sudo" }), []string{"note: user namespaces stay as they are: no sudo"}},
		{"no profile that AppArmor's tools do not know", with(onlyNamespaces(), func(f *Facts) { f.Profile = false }),
			[]string{"note: user namespaces stay as they are: AppArmor's tools here know no profile that allows them (they are older than 4.0)"}},
		{"no copy where others can write", with(onlyNamespaces(), func(f *Facts) { f.CopyIn, f.CopyWhy = "", "/usr/local/lib can be written by others" }),
			[]string{"note: user namespaces stay as they are: there is no folder for a copy of this program that only root can write: /usr/local/lib can be written by others"}},
		{"nothing helps against a container's filter", with(onlyNamespaces(), func(f *Facts) { f.AppArmor, f.BySetting, f.Namespaces = false, false, "operation not permitted" }),
			[]string{"note: user namespaces stay as they are: what is wrong with them is nothing that can be added for one run (operation not permitted)"}},
		{"a copy that still may not is not started for ever", with(onlyNamespaces(), func(f *Facts) { f.Started = true }),
			[]string{"note: user namespaces stay as they are: this program was started again from /home/runner/us, and still may not: make mounts private: permission denied"}},

		{"the machine's setting only by name", with(onlyNamespaces(), func(f *Facts) { f.Setup = SetupSysctl }), []string{
			s + "mkdir -p -m 0755 /run/untrusted-steps",
			s + "tee /run/untrusted-steps/" + leaseName + ` <<< {"uid":1001,"sysctl":true,"was":"1"}\n`,
			s + "chmod 0644 /run/untrusted-steps/" + leaseName,
			s + `tee /proc/sys/kernel/apparmor_restrict_unprivileged_userns <<< 0\n`,
		}},
		{"what another run has lifted is held, or it would be restricted again with its end", with(onlyNamespaces(), func(f *Facts) { f.Namespaces, f.AppArmor, f.Lifted = "", false, true }), []string{
			s + "mkdir -p -m 0755 /run/untrusted-steps",
			s + "tee /run/untrusted-steps/" + leaseName + ` <<< {"uid":1001,"sysctl":true,"was":"1"}\n`,
			s + "chmod 0644 /run/untrusted-steps/" + leaseName,
		}},
		{"and only where it is what restricts", with(onlyNamespaces(), func(f *Facts) { f.Setup, f.BySetting = SetupSysctl, false }),
			[]string{"note: user namespaces stay as they are: it is not the setting kernel.apparmor_restrict_unprivileged_userns that restricts them"}},

		{"prepared to last: a copy that the machine's own profiles know, and no start", with(onlyNamespaces(), func(f *Facts) { f.Lasting, f.Args, f.PID = true, nil, 4000 }), lines(installCopy, []string{
			s + "tee /etc/apparmor.d/untrusted-steps-1001-001122334455 <<< " + copyText,
			s + "chmod 0644 /etc/apparmor.d/untrusted-steps-1001-001122334455",
			"/usr/bin/sudo -n -- /usr/sbin/apparmor_parser --replace --skip-cache /etc/apparmor.d/untrusted-steps-1001-001122334455",
		})},
		{"prepared to last: the shell that asks gets a group", with(onlyGroups(), func(f *Facts) { f.Lasting, f.Args, f.PID, f.Scope = true, nil, 4000, "" }), []string{
			makeGroup[0], s + "tee /run/untrusted-steps/" + leaseName + ` <<< {"uid":1001,"groups":[{"dir":"/sys/fs/cgroup/` + leaseName + `","from":"/sys/fs/cgroup/system.slice/job.service"}],"lasting":true}\n`,
			makeGroup[2], makeGroup[3], makeGroup[4], s + "tee /sys/fs/cgroup/" + leaseName + `/cgroup.procs <<< 4000\n`,
		}},
		{"prepared to last: each run takes a scope of its own", with(onlyGroups(), func(f *Facts) { f.Lasting, f.Args = true, nil }),
			[]string{"hint: each run makes a control group of its own by the user's systemd: untrusted-steps run --host-setup auto FILE"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := Plan(c.f)
			if diff := cmp.Diff(c.want, told(p)); diff != "" {
				t.Error(diff)
			}
			for _, a := range p.Actions {
				if a.Does == "" {
					t.Errorf("nobody is told of %q", a.Argv)
				}
			}
			// What is made is written down, in words that are believed again.
			if p.Lease == nil {
				return
			}
			back, err := readLease(leaseName, p.Actions[1].Stdin)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(*p.Lease, back); diff != "" {
				t.Errorf("the lease reads back otherwise: %s", diff)
			}
			if len(back.words()) == 0 {
				t.Error("a program that is started again cannot say what was made")
			}
		})
	}
}

func TestUndo(t *testing.T) {
	group := Moved{Dir: "/sys/fs/cgroup/" + leaseName, From: "/sys/fs/cgroup/system.slice/job.service"}
	lease := Lease{Name: leaseName, UID: 1001, Groups: []Moved{group}, Copy: "1001-" + sum, Sysctl: true, Was: "2"}
	removeLease := s + "rm -f /run/untrusted-steps/" + leaseName
	for _, c := range []struct {
		name string
		left Left
		want []string
	}{
		{"of all that was made", Left{Lease: lease, Groups: []Moved{group}, Members: []int{4711, 4712}, Copy: true, In: "/usr/local/lib/untrusted-steps", Sysctl: true, Written: true}, []string{
			s + `tee /sys/fs/cgroup/system.slice/job.service/cgroup.procs <<< 4711\n`,
			s + `tee /sys/fs/cgroup/system.slice/job.service/cgroup.procs <<< 4712\n`,
			s + "rmdir " + group.Dir,
			"/usr/bin/sudo -n -- /usr/sbin/apparmor_parser --remove <<< " + copyText,
			s + "rm -f " + copyDir + "/untrusted-steps",
			s + "rmdir " + copyDir,
			s + `tee /proc/sys/kernel/apparmor_restrict_unprivileged_userns <<< 2\n`,
			removeLease,
		}},
		{"what others use stays", Left{Lease: lease, Groups: []Moved{group}, Written: true}, []string{s + "rmdir " + group.Dir, removeLease}},
		{"what was never made is not taken away", Left{Lease: lease, Written: true}, []string{removeLease}},
		{"nothing is there", Left{Lease: lease}, nil},
		{"of each hierarchy", Left{Lease: lease, Groups: []Moved{{"/c/memory/x/" + leaseName, "/c/memory/x"}, {"/c/pids/" + leaseName, "/c/pids"}}, Members: []int{7}}, []string{
			s + `tee /c/memory/x/cgroup.procs /c/pids/cgroup.procs <<< 7\n`,
			s + "rmdir /c/memory/x/" + leaseName + " /c/pids/" + leaseName,
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			list := Undo(lacking(), c.left)
			if diff := cmp.Diff(c.want, told(Steps{Actions: list})); diff != "" {
				t.Error(diff)
			}
			for i, a := range list {
				if a.Last != (c.left.Written && i == len(list)-1) {
					t.Errorf("%q: last is %v", a.Argv, a.Last)
				}
			}
		})
	}
}

// TestReadLease: what a lease says becomes arguments of root's commands, so only
// what we could have written is believed.
func TestReadLease(t *testing.T) {
	good := `{"uid":1001,"groups":[{"dir":"/sys/fs/cgroup/` + leaseName + `","from":"/"}],"copy":"1001-` + sum + `","sysctl":true,"was":"2","lasting":true}`
	if l, err := readLease(leaseName, good); err != nil || len(l.Groups) != 1 || l.Copy == "" || !l.Sysctl || !l.Lasting {
		t.Errorf("%+v: %v", l, err)
	}
	for name, text := range map[string]string{
		"no JSON":                       "x",
		"more behind it":                good + "{}",
		"a key that there is not":       `{"uid":1001,"run":"rm"}`,
		"root's":                        `{"uid":0}`,
		"nobody's":                      `{}`,
		"a group of another name":       `{"uid":1001,"groups":[{"dir":"/sys/fs/cgroup/system.slice","from":"/"}]}`,
		"a group that climbs":           `{"uid":1001,"groups":[{"dir":"/sys/fs/cgroup/../../etc/` + leaseName + `","from":"/"}]}`,
		"a place to go to that climbs":  `{"uid":1001,"groups":[{"dir":"/c/` + leaseName + `","from":"/c/../etc"}]}`,
		"a relative one":                `{"uid":1001,"groups":[{"dir":"` + leaseName + `","from":"/"}]}`,
		"somebody else's copy":          `{"uid":1001,"copy":"1002-` + sum + `"}`,
		"a setting that is no number":   `{"uid":1001,"sysctl":true,"was":"0; reboot"}`,
		"a setting that nobody changed": `{"uid":1001,"was":"1"}`,
		"a copy elsewhere":              `{"uid":1001,"copy":"1001-../../etc"}`,
		"a copy of nothing":             `{"uid":1001,"copy":"1001-abc"}`,
		"more groups than there are":    `{"uid":1001,"groups":[` + strings.Repeat(`{"dir":"/c/`+leaseName+`","from":"/"},`, 20) + `{"dir":"/c/` + leaseName + `","from":"/"}]}`,
		"too long":                      `{"uid":1001,"copy":"` + strings.Repeat("a", maxLease) + `"}`,
	} {
		if l, err := readLease(leaseName, text); err == nil {
			t.Errorf("%s is believed: %+v", name, l)
		}
	}
}

// TestSpareActions: what is only nice to have keeps nothing else from being done.
func TestSpareActions(t *testing.T) {
	var said []string
	p := &Preparer{Say: func(line string) { said = append(said, line) }}
	no, yes := Action{Does: "do this", Argv: []string{"/bin/false"}}, Action{Does: "do that", Argv: []string{"/bin/true"}}
	if done, err := p.carryOut(t.Context(), []Action{no, yes}); err == nil || len(done) > 0 {
		t.Errorf("it failed, and got on to %v", done)
	}
	no.Spare, said = true, nil
	done, err := p.carryOut(t.Context(), []Action{no, yes})
	if err != nil || len(done) != 1 || done[0].Does != "do that" {
		t.Errorf("it did %v: %v", done, err)
	}
	if len(said) != 2 || !strings.HasPrefix(said[0], "could not do this: ") || said[1] != "do that" {
		t.Errorf("it said %q", said)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if done, err := p.carryOut(ctx, []Action{no, yes}); err == nil || len(done) > 0 {
		t.Errorf("it was cancelled, and did %v", done)
	}
}

// TestEveryCommandIsFixed: whatever the facts, root runs programs of the list by
// their whole paths, and nothing runs a shell.
func TestEveryCommandIsFixed(t *testing.T) {
	f := lacking()
	f.Self, f.Args = "/tmp/x; rm -rf /", []string{"run", "$(id)", "; reboot"}
	f.Scope, f.Site.Off, f.Site.CPUOff = "", []string{"memory"}, true
	for _, lasting := range []bool{false, true} {
		f.Lasting = lasting
		p := Plan(f)
		for _, a := range p.Actions {
			if fmt.Sprint(a.Argv[:3]) != "[/usr/bin/sudo -n --]" || !strings.HasPrefix(a.Argv[3], "/usr/") {
				t.Errorf("%q is no fixed command", a.Argv)
			}
			for _, w := range a.Argv {
				if strings.ContainsAny(w, ";$ ") {
					t.Errorf("%q is in a command of root's", w)
				}
			}
		}
		if b, err := json.Marshal(p.Lease); err != nil || strings.Contains(string(b), "reboot") {
			t.Errorf("%s: %v", b, err)
		}
	}
}

// TestPlanText: what --dry-run prints can be pasted.
func TestPlanText(t *testing.T) {
	got := Plan(with(lacking(), func(f *Facts) { f.Scope = "" })).Text()
	for _, want := range []string{
		"# make /run/untrusted-steps\n/usr/bin/sudo -n -- /usr/bin/mkdir -p -m 0755 /run/untrusted-steps\n",
		"printf '4711\\n' | /usr/bin/sudo -n -- /usr/bin/tee /sys/fs/cgroup/" + leaseName + "/cgroup.procs\n",
		"printf 'abi <abi/4.0>,\\n\\nprofile ",
		"# start again as\nenv " + Marker + "=" + leaseName + " " + copyDir + "/untrusted-steps run f.yml\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
	if got := (Steps{}).Text(); got != "# nothing is missing\n" {
		t.Errorf("an empty plan is %q", got)
	}
	if got := (Steps{Notes: []string{"a\n::error::b"}}).Text(); strings.Contains(got, "\n::") {
		t.Errorf("not inert: %q", got)
	}
}

func TestParseSetup(t *testing.T) {
	for word, want := range map[string]Setup{"off": SetupOff, "auto": SetupAuto, "sysctl": SetupSysctl, "": SetupOff, "on": SetupOff, "AUTO": SetupOff} {
		got, err := ParseSetup(word)
		if got != want || (err == nil) != (word == string(want)) {
			t.Errorf("%q is %q, %v", word, got, err)
		}
	}
}

// Not every file system has access lists: then all of the group may enter, and that
// is said. Where that fails too nothing follows.
func TestWhereSetfaclFailsTheGroupMayEnter(t *testing.T) {
	var enter *Action
	list := onlyNamespaces().copyActions()
	for i, a := range list {
		if strings.Contains(strings.Join(a.Argv, " "), "setfacl") {
			enter = &list[i]
		}
	}
	if enter == nil || len(enter.Else) != 2 {
		t.Fatalf("nothing stands in for setfacl: %+v", list)
	}
	if got, want := strings.Join(enter.Else[0].Argv, " ")+"; "+strings.Join(enter.Else[1].Argv, " "), "/usr/bin/sudo -n -- /usr/bin/chown 0:118 "+copyDir+"; /usr/bin/sudo -n -- /usr/bin/chmod 0710 "+copyDir; got != want {
		t.Errorf("in its place: %s", got)
	}
	var said []string
	p := &Preparer{Say: func(line string) { said = append(said, line) }}
	enter.Argv, enter.Else[0].Argv, enter.Else[1].Argv = []string{"/bin/false"}, []string{"/bin/true"}, []string{"/bin/true"}
	done, err := p.carryOut(t.Context(), []Action{*enter})
	if all := strings.Join(said, "\n"); err != nil || len(done) != 2 || !strings.Contains(all, "could not let user 1001 enter it") || !strings.Contains(all, "let all of group 118 enter "+copyDir) {
		t.Errorf("%v, %d done, said %q", err, len(done), said)
	}
	enter.Else[0].Argv = []string{"/bin/false"}
	if done, err := p.carryOut(t.Context(), []Action{*enter, {Does: "more", Argv: []string{"/bin/true"}}}); err == nil || len(done) > 0 {
		t.Errorf("it went on: %v, %v", done, err)
	}
}

// Of a copy that cannot be asked nobody knows whether a run uses it.
func TestWhatCannotBeLockedIsInUse(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	if err := os.Symlink("there", link); err != nil { // it is opened by no link
		t.Fatal(err)
	}
	if !inUse(link) {
		t.Error("what cannot be opened counts as free")
	}
	if inUse(filepath.Join(dir, "none")) {
		t.Error("what is not there counts as in use")
	}
}

func TestAlone(t *testing.T) {
	const passwd = "root:x:0:0:root:/root:/bin/sh\nme:x:1001:118::/home/me:/bin/sh\nother:x:1002:1002::/home/other:/bin/sh\n"
	for _, c := range []struct {
		name, passwd, group string
		want                bool
	}{
		{"a group of its own", passwd, "me:x:118:\n", true},
		{"that lists the account itself", passwd, "me:x:118:me\n", true},
		{"with another member", passwd, "docker:x:118:me,other\n", false},
		{"that is another account's too", passwd + "third:x:1003:118::/:/bin/sh\n", "staff:x:118:\n", false},
		{"a group that is not in the file", passwd, "", true},
		{"an account that is not in the file", "root:x:0:0:root:/root:/bin/sh\n", "me:x:118:\n", false},
		{"nothing", "", "", false},
	} {
		if got := alone(c.passwd, c.group, 1001, 118); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
