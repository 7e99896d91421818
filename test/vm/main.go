package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ok, err := matrix(ctx, os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "vm:", err)
	}
	if !ok || err != nil {
		os.Exit(1)
	}
}

func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format(time.TimeOnly)+" "+format+"\n", args...)
}

// matrix runs what the arguments choose, and says whether every outcome is the
// wanted one.
func matrix(ctx context.Context, args []string) (bool, error) {
	flags := flag.NewFlagSet("test/vm/run", flag.ExitOnError)
	smoke := flags.Bool("smoke", false, "one set-up for each engine, with a few groups of facts: what CI runs")
	only := flags.String("only", "", "run the rows whose `PATTERN` fits \"set-up | way | engine\"")
	list := flags.Bool("list", false, "name the rows, and run nothing")
	out := flags.String("out", "", "keep the logs and reports of all checks in this `folder`")
	_ = flags.Parse(args)
	if flags.NArg() > 0 {
		return false, fmt.Errorf("what is %q?", flags.Arg(0))
	}
	chosen, err := choose(rows(), *smoke, *only)
	if err != nil {
		return false, err
	}
	if *list {
		for _, r := range chosen {
			fmt.Println(r)
		}
		return true, nil
	}
	if runtime.GOARCH != "amd64" {
		return false, fmt.Errorf("the machines are amd64, and this one is %s", runtime.GOARCH)
	}
	if os.Geteuid() != 0 {
		return false, errors.New("making and sharing a machine's files needs root")
	}
	img, err := openImage(ctx, say)
	if err != nil {
		return false, err
	}
	defer img.release()
	work, err := os.MkdirTemp("", "vm-matrix-")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(work)
	files := filepath.Join(work, "files")
	if err := build(ctx, files, chosen); err != nil {
		return false, err
	}
	var lines []outcome
	for n, r := range chosen {
		at := filepath.Join(work, "row")
		if *out != "" {
			at = filepath.Join(*out, strconv.Itoa(n+1))
		}
		lines = append(lines, img.row(ctx, r, *smoke, files, at)...)
		if ctx.Err() != nil {
			break
		}
	}
	table(os.Stdout, lines)
	return all(lines), ctx.Err()
}

// choose gives the rows that are asked for.
func choose(all []row, smoke bool, only string) ([]row, error) {
	pattern, err := regexp.Compile(only)
	if err != nil {
		return nil, fmt.Errorf("-only: %w", err)
	}
	var chosen []row
	for _, r := range all {
		if (r.smoke || !smoke) && pattern.MatchString(r.String()) {
			chosen = append(chosen, r)
		}
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("-only %q fits no row", only)
	}
	return chosen, nil
}

// build makes what the rows need: the product and its suites. Its tests are of the sources as they are.
func build(ctx context.Context, dir string, chosen []row) error {
	say("building the program and the suites")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	prog := filepath.Join(dir, filepath.Base(program))
	if err := command(ctx, "go", "build", "-trimpath", "-o", prog, "./cmd/action"); err != nil {
		return err
	}
	for _, e := range engines {
		if !slices.ContainsFunc(chosen, func(r row) bool { return r.engine == e && r.facts }) {
			continue
		}
		if err := command(ctx, "go", "test", "-c", "-o", filepath.Join(dir, e+".test"), "./internal/"+e); err != nil {
			return err
		}
	}
	if slices.ContainsFunc(chosen, func(r row) bool { return r.engine == "kern" }) {
		path, err := exec.CommandContext(ctx, prog, "kern", "path").Output()
		if err != nil {
			return errors.New("there is no kern for its engine: untrusted-steps kern install")
		}
		if err := copyFile(strings.TrimSpace(string(path)), filepath.Join(dir, "kern"), 0o755); err != nil {
			return err
		}
	}
	if slices.ContainsFunc(chosen, func(r row) bool { return r.engine == ownKernel }) {
		path, err := exec.CommandContext(ctx, prog, "runsc", "path").Output()
		if err != nil {
			return errors.New("there is no runsc for engine gvisor: untrusted-steps runsc build")
		}
		if err := copyFile(strings.TrimSpace(string(path)), filepath.Join(dir, "runsc"), 0o755); err != nil {
			return err
		}
		if err := slowly(filepath.Join("examples", quickstart(ownKernel)), filepath.Join(dir, quickstart(ownKernel))); err != nil {
			return err
		}
	}
	return copyFile("examples/quickstart.yml", filepath.Join(dir, "quickstart.yml"), 0o644)
}

// slowly copies a steps file whose steps have ten times as long, but for the one that
// is to run past its deadline: each program that starts is an emulated kernel's work
// on an emulated kernel.
func slowly(from, to string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	text := string(b)
	// Nor may a process of the fork bomb end before the last one is there.
	for old, slow := range map[string]string{"\n  timeoutS: 20\n": "\n  timeoutS: 200\n", " sleep 5 &": " sleep 150 &"} {
		if strings.Count(text, old) != 1 {
			return fmt.Errorf("%s no longer has the one line with %q", from, strings.TrimSpace(old))
		}
		text = strings.Replace(text, old, slow, 1)
	}
	return os.WriteFile(to, []byte(text), 0o644)
}

func copyFile(from, to string, mode os.FileMode) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, mode)
}

// outcome is a line of the table.
type outcome struct {
	row     row
	what    string
	refused bool // wanted
	verdict verdict
	took    time.Duration
}

func (o outcome) word() string {
	if o.verdict.ok {
		return "ok"
	}
	return "WRONG"
}

// all says whether every outcome is the wanted one.
func all(lines []outcome) bool {
	for _, o := range lines {
		if !o.verdict.ok {
			return false
		}
	}
	return len(lines) > 0
}

func table(w io.Writer, lines []outcome) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SET-UP\tWAY\tENGINE\tWHAT\tWANTED\tOUTCOME\tSECONDS\tSEEN")
	for _, o := range lines {
		wanted := "pass"
		if o.refused {
			wanted = "exit 3"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%.0f\t%s\n",
			o.row.setup.name, o.row.way, o.row.engine, o.what, wanted, o.word(), o.took.Seconds(), o.verdict.seen)
	}
	_ = t.Flush()
	for _, u := range unmeasured {
		fmt.Fprintf(w, "not measured here: %s: %s: %s\n", u.group, u.fact, u.why)
	}
}

// row runs the checks of a row in a machine of its own, and judges them.
func (i image) row(ctx context.Context, r row, smoke bool, files, dir string) []outcome {
	checks := r.checks(smoke)
	begun := time.Now()
	say("%s", r)
	err := i.perform(ctx, r.file(), checks, files, dir)
	var lines []outcome
	for _, c := range checks {
		o := outcome{row: r, what: c.name, refused: c.refused}
		res, took := read(filepath.Join(dir, c.name))
		o.verdict, o.took = c.judge(res), took
		if res.status == nil && err != nil {
			o.verdict = wrong("did not end: %v", err)
		}
		say("  %s: %s, %s", c.name, o.word(), o.verdict.seen)
		lines = append(lines, o)
	}
	say("  after %.0f s in all", time.Since(begun).Seconds())
	return lines
}

// perform lays out the folder that a machine shares, and runs the machine until
// it ends by itself.
func (i image) perform(ctx context.Context, setup string, checks []check, files, dir string) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	var order strings.Builder
	limit := time.Duration(0)
	for _, c := range checks {
		if err := os.MkdirAll(filepath.Join(dir, c.name), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, c.name, "command"), []byte(c.command), 0o644); err != nil {
			return err
		}
		fmt.Fprintf(&order, "%s %.0f\n", c.name, c.limit.Seconds())
		limit += c.limit + time.Minute
	}
	guest := os.CopyFS(filepath.Join(dir, "guest"), os.DirFS("test/vm/guest"))
	err = errors.Join(guest,
		copyFile("test/vm/guest/perform", filepath.Join(dir, "perform"), 0o755),
		os.CopyFS(filepath.Join(dir, "files"), os.DirFS(files)),
		os.WriteFile(filepath.Join(dir, "checks"), []byte(order.String()), 0o644),
		os.WriteFile(filepath.Join(dir, "setup"), []byte(setup), 0o644))
	if err != nil {
		return err
	}
	// 26 MB that are in the results folder of nobody.
	defer os.RemoveAll(filepath.Join(dir, "files"))

	m, err := i.begin(ctx, dir)
	if err != nil {
		return err
	}
	err = m.wait(ctx, limit, func() bool {
		select {
		case <-m.ended:
			return true
		default:
			return false
		}
	})
	if b, e := os.ReadFile(filepath.Join(dir, "broken")); e == nil {
		err = errors.Join(err, errors.New(strings.TrimSpace(string(b))))
	}
	if b, e := os.ReadFile(m.console()); e == nil {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, "console"), b, 0o644))
	}
	return errors.Join(err, m.stop())
}

// begin starts a machine and sees it begin with its checks: gone on from the
// saved state if that works, else booted.
func (i image) begin(ctx context.Context, share string) (*machine, error) {
	var failed error
	for _, u := range []use{resuming, booting, booting} {
		m, err := i.start(ctx, share, u)
		if err == nil {
			if err = m.begun(ctx, share, u); err == nil {
				return m, nil
			}
			err = errors.Join(err, m.stop())
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		say("  a machine did not start: %v", err)
		failed = errors.Join(failed, err)
	}
	return nil, failed
}

func (m *machine) begun(ctx context.Context, share string, u use) error {
	if u == booting {
		if err := m.wait(ctx, bootWithin, m.waiting); err != nil {
			return err
		}
	}
	line, err := m.speak()
	if err != nil {
		return err
	}
	defer line.Close()
	return m.wait(ctx, resumeWithin, func() bool {
		for _, sign := range []string{"started", "broken"} {
			if _, err := os.Stat(filepath.Join(share, sign)); err == nil {
				return true
			}
		}
		return false
	})
}

// read gathers what a check left, and how long it took.
func read(dir string) (result, time.Duration) {
	text := func(name string) string { b, _ := os.ReadFile(filepath.Join(dir, name)); return string(b) }
	r := result{stdout: text("stdout"), stderr: text("stderr")}
	if b, err := os.ReadFile(filepath.Join(dir, "report.json")); err == nil {
		r.report = b
	}
	if n, err := strconv.Atoi(strings.TrimSpace(text("status"))); err == nil {
		r.status = &n
	}
	seconds, _ := strconv.Atoi(strings.TrimSpace(text("seconds")))
	return r, time.Duration(seconds) * time.Second
}
