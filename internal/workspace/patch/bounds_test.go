package patch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// The lines are compared in memory and in n log n; beyond a bound they are not.
func TestAHugeTextIsWrittenInBoundedTime(t *testing.T) {
	var before, after strings.Builder
	for i := range maxTextLines - 1 {
		fmt.Fprintln(&before, i%7*i)
		fmt.Fprintln(&after, i%5*i)
	}
	start := time.Now()
	if len(hunks([]byte(before.String()), []byte(after.String()))) == 0 {
		t.Error("no hunks")
	}
	took := time.Since(start)
	t.Logf("%d lines that all differ: %v", maxTextLines, took)
	if took > time.Minute {
		t.Errorf("took %v", took)
	}
	sum, p := applies(t, tree{"f": text(before.String() + "\n\n")}, tree{"f": text(after.String())})
	if sum.Files != 1 || !strings.Contains(p, "GIT binary patch") {
		t.Errorf("more lines than the bound: %+v", sum)
	}
	old, now := tree{}, tree{}
	for i := range maxAllLines/(2*maxTextLines) + 1 {
		old[fmt.Sprintf("%02d", i)] = text(strings.Repeat("a\n", maxTextLines))
		now[fmt.Sprintf("%02d", i)] = text(strings.Repeat("a\n", maxTextLines-1) + "b\n")
	}
	_, p = applies(t, old, now)
	if n := strings.Count(p, "GIT binary patch"); n != 1 {
		t.Errorf("%d literals beyond the bound on all files together, want 1", n)
	}
}

func TestALargePatchIsKeptInAFileWithoutAName(t *testing.T) {
	after := tree{}
	line := strings.Repeat("a line of a text ", 60) + "\n"
	for i := range 12 {
		after[fmt.Sprintf("f%d", i)] = text(fmt.Sprint(i) + strings.Repeat(line, 600))
	}
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	sum, _ := applies(t, tree{}, after)
	if sum.Bytes < spoolMemory {
		t.Errorf("%d bytes do not test this", sum.Bytes)
	}
	left, err := os.ReadDir(temp)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range left {
		if strings.HasPrefix(e.Name(), "untrusted-steps-patch-") {
			t.Errorf("%s is left", e.Name())
		}
	}
}

func TestWriteEndsWhenCancelled(t *testing.T) {
	d := dirs{t.TempDir(), t.TempDir()}
	lay(t, d.after, tree{"f": text("a")})
	changes := d.changes(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Write(ctx, &bytes.Buffer{}, changes, d, Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
