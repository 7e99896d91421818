package workspace_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

const (
	killedSteps = 6
	killedFiles = 150
	killedTimes = 5 // for each way
)

// turn is a script that makes every file of the workspace tell its number, and
// deletes, makes, moves and retypes what tells it by being there. At any moment
// but between two of them a tree is neither the one nor the other.
func turn(n int) string {
	return fmt.Sprintf(`i=0
while [ $i -lt %[2]d ]; do echo %[1]d > files/$i; i=$((i+1)); done
rm -rf at-*; mkdir at-%[1]d
i=0
while [ $i -lt 10 ]; do echo %[1]d > at-%[1]d/$i; i=$((i+1)); done
rm -rf kind
if [ $((%[1]d %% 2)) = 0 ]; then mkdir kind; echo %[1]d > kind/k; ln -s files kind/l; else echo %[1]d > kind; fi
chmod 7%[3]d5 files
ln -sfn at-%[1]d now
`, n, killedFiles, n%8)
}

// turnOf says which turn a tree is of; an error is what does not fit.
func turnOf(dir string) (int, error) {
	b, err := os.ReadFile(filepath.Join(dir, "files", "0"))
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return 0, err
	}
	var wrong []string
	is := func(name string) {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || strings.TrimSpace(string(b)) != strconv.Itoa(n) {
			wrong = append(wrong, fmt.Sprintf("%s has %q (%v)", name, b, err))
		}
	}
	for i := range killedFiles {
		is(fmt.Sprintf("files/%d", i))
	}
	want := []string{fmt.Sprintf("at-%d", n), "files", "kind", "now"}
	if n == 0 {
		want = []string{"files"}
	} else {
		for i := range 10 {
			is(fmt.Sprintf("at-%d/%d", n, i))
		}
		if n%2 == 0 {
			is("kind/k")
		} else {
			is("kind")
		}
		if to, _ := os.Readlink(filepath.Join(dir, "now")); to != want[0] {
			wrong = append(wrong, "now leads to "+to)
		}
		if st, err := os.Stat(filepath.Join(dir, "files")); err != nil || st.Mode().Perm() != os.FileMode(0o705+n%8*8) {
			wrong = append(wrong, fmt.Sprintf("files has mode %v (%v)", st.Mode(), err))
		}
	}
	list, err := os.ReadDir(dir)
	if err != nil {
		return n, err
	}
	var names []string
	for _, l := range list {
		names = append(names, l.Name())
	}
	if !slices.Equal(names, want) {
		wrong = append(wrong, fmt.Sprintf("the folder has %q, want %q", names, want))
	}
	if wrong != nil {
		return n, fmt.Errorf("turn %d: %s", n, strings.Join(wrong, "; "))
	}
	return n, nil
}

func TestAProgramThatIsKilledLeavesOneStateOrTheNextAndNothingBesideIt(t *testing.T) {
	eachWay(t, func(t *testing.T, w way) {
		random := rand.New(rand.NewPCG(4, 4))
		var list []scriptStep
		for i := range killedSteps {
			list = append(list, scriptStep{id: fmt.Sprintf("s%d", i+1), text: turn(i + 1)})
		}
		fresh := func() *place {
			p := newPlace(t, w)
			do(t, os.Mkdir(filepath.Join(p.workspace, "files"), 0o755))
			for i := range killedFiles {
				do(t, os.WriteFile(filepath.Join(p.workspace, "files", strconv.Itoa(i)), []byte("0\n"), 0o644))
			}
			p.own(t)
			return p
		}
		// The control: a run that is not killed comes to the last turn, and tells
		// how long one takes.
		p := fresh()
		begun := time.Now()
		p.run(t, w.file("", list...)).exits(0)
		whole := time.Since(begun)
		if n, err := turnOf(p.workspace); n != killedSteps || err != nil {
			t.Fatalf("not killed, the workspace is at turn %d: %v", n, err)
		}
		p.clean(t)
		killed, torn, between := 0, 0, map[int]int{}
		for i := range killedTimes {
			p := fresh()
			cmd, _ := p.command(t, w.file("", list...))
			var log bytes.Buffer
			cmd.Stdout, cmd.Stderr = &log, &log
			do(t, cmd.Start())
			if i%2 == 0 {
				time.Sleep(time.Duration(random.Float64() * float64(whole)))
			} else { // as soon as a commit shows, or a little later
				want := strconv.Itoa(1 + random.IntN(killedSteps-1))
				for until := time.Now().Add(2 * whole); time.Now().Before(until); time.Sleep(100 * time.Microsecond) {
					if b, _ := os.ReadFile(filepath.Join(p.workspace, "files", "0")); strings.TrimSpace(string(b)) == want {
						break
					}
				}
				time.Sleep(time.Duration(random.Float64() * float64(4*time.Millisecond)))
			}
			_ = cmd.Process.Kill()
			if err := cmd.Wait(); err != nil && !cmd.ProcessState.Exited() {
				killed++
			}
			if _, err := turnOf(p.workspace); err != nil {
				torn++ // which the next run has to mend
			}
			r := p.run(t, w.file("", scriptStep{id: "after", text: "true"}))
			r.exits(0)
			n, err := turnOf(p.workspace)
			if err != nil {
				t.Errorf("killed, and run again, the workspace is mixed: %v\nnotes: %q", err, r.Notes)
			}
			if st := r.step("after"); st.Workspace != "unchanged" || len(st.Files) > 0 {
				t.Errorf("the step after it changed %+v", st.Files)
			}
			between[n]++
			p.clean(t)
		}
		t.Logf("one run takes %v; of %d, %d were killed, %d within a commit; afterwards at turn %v", whole, killedTimes, killed, torn, between)
		if torn == 0 && killed > 0 {
			t.Log("no run was killed within a commit")
		}
		if killed == 0 {
			t.Error("control: no run was killed before its end")
		}
	})
}
