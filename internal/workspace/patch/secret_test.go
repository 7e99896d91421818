package patch

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSecretsAreNotInAPatch(t *testing.T) {
	const secret = "hunter2hunter2"
	mask := func(b []byte) []byte { return bytes.ReplaceAll(b, []byte(secret), []byte("***")) }
	d := dirs{t.TempDir(), t.TempDir()}
	lay(t, d.before, tree{
		"context": text(secret + "\n2\n3\n"), "far": text(secret + "\n" + numbers), "old": text("pw=" + secret + "\n"), "oldbin": text(secret + "\x00"),
	})
	lay(t, d.after, tree{
		"context": text(secret + "\n2\nthree\n"), "far": text(secret + "\n" + numbers + "17\n"), "new": text("a\nx" + secret + "y"), "bin": text("\x00" + secret),
		"link": link("/" + secret), "name-" + secret: text("a\n"), "p-" + secret: {kind: "fifo"}, "clean": text("a\n"), "cleanbin": text("\x00"),
		"long": text(strings.Repeat("a\n", maxTextLines+1) + secret),
	})
	var b bytes.Buffer
	sum, err := Write(context.Background(), &b, d.changes(t), d, Options{Mask: mask})
	if err != nil {
		t.Fatal(err)
	}
	want := []Note{
		{"bin", "its content holds the value of a secret"}, {"long", "its content holds the value of a secret"},
		{"name-***", "its name holds the value of a secret"}, {"oldbin", "its content holds the value of a secret"}, {"p-***", "a fifo"},
	}
	if diff := cmp.Diff(want, sum.Lost); diff != "" {
		t.Errorf("lost (-want +got):\n%s", diff)
	}
	if sum.Masked != 4 || len(sum.MaskedPaths) != 4 || sum.Files != 7 {
		t.Errorf("%d masked (%q), %d files", sum.Masked, sum.MaskedPaths, sum.Files)
	}
	p := b.String()
	if strings.Contains(p, secret) {
		t.Errorf("the secret is in\n%s", p)
	}
	if strings.Contains(p, blob([]byte("pw="+secret+"\n"))) {
		t.Error("the name of a content with the secret is in the patch")
	}
	for _, s := range []string{"\n-pw=***\n", "\n ***\n 2\n-3\n+three\n", "\n+x***y\n\\ No newline", "\n+/***\n", "# Values of secrets are masked", "\n#   \"new\"\n"} {
		if !strings.Contains(p, s) {
			t.Errorf("no %q in\n%s", s, p)
		}
	}
	if strings.Contains(p, `#   "far"`) {
		t.Error("a file is said to be masked whose secret is in no hunk")
	}
}

func TestAMaskCannotAddLines(t *testing.T) {
	out, found := maskLines(hunks(nil, []byte("a\nb\n")), func([]byte) []byte { return []byte("x\n+y") })
	if !found || string(out) != "@@ -0,0 +1,2 @@\n+x +y\n+x +y\n" {
		t.Errorf("%q", out)
	}
}
