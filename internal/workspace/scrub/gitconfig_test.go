package scrub

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestScrubGitConfig(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"nothing secret stays byte for byte", "\xef\xbb\xbf[core]\r\n\tbare = false ; why\r\n\r\n[a \"b\\\"c\"] x\n# end", "\xef\xbb\xbf[core]\r\n\tbare = false ; why\r\n\r\n[a \"b\\\"c\"] x\n# end"},
		{
			"the checkout's header goes, its section stays",
			"[http \"https://github.com/\"]\n\textraheader = AUTHORIZATION: basic c2VjcmV0\n[gc]\n\tauto = 0\n",
			"[http \"https://github.com/\"]\n[gc]\n\tauto = 0\n",
		},
		{"a key on its section's line", "[http] extraheader = s3cr\n[a] b = 1\n", "[http] \n[a] b = 1\n"},
		{"a value that goes on in the next line", "[http]\nextraHeader = a \\\n s3cr\\\n et\n\tproxy = p\n", "[http]\n\tproxy = p\n"},
		{"a quoted value with a line's end in it", "[http]\nextraheader = \"a\\\n # s3cr\"\n[x]\n", "[http]\n[x]\n"},
		{"CR LF", "[http]\r\n\textraheader = s3cr\r\n[x]\r\n", "[http]\r\n[x]\r\n"},
		{"the last line has no end", "[http]\n\textraheader = s3cr", "[http]\n"},
		{"letters of either case", "[HTTP]\n  ExtraHeader=s3cr\n", "[HTTP]\n"},
		{"the old way to write a subsection", "[http.x]\nextraheader=s3cr\n", "[http.x]\n"},
		{"helpers and users of credentials", "[credential]\n\thelper = store --file s3cr\n[credential \"https://h\"]\n\tusername = s3cr\n", "[credential]\n[credential \"https://h\"]\n"},
		{"includes", "[include]\n\tpath = s3cr\n[includeIf \"gitdir:/x/.git\"]\n\tpath = s3cr\n", "[include]\n[includeIf \"gitdir:/x/.git\"]\n"},
		{
			"a remote's user", "[remote \"origin\"]\n\turl = https://u:s3cr@h/p.git # c\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n",
			"[remote \"origin\"]\n\turl = \"https://h/p.git\" # c\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n",
		},
		{"a remote's user in pieces", "[remote \"o\"]\n\turl = https://\"u:s3\"c\\\nr@h/p.git\n", "[remote \"o\"]\n\turl = \"https://h/p.git\"\n"},
		{"a token as the user", "[remote \"o\"]\n\tpushurl=https://s3cr@h/p\n", "[remote \"o\"]\n\tpushurl=\"https://h/p\"\n"},
		{"a token in the query", "[remote \"o\"]\n\turl = https://h/p?private_token=s3cr\n", "[remote \"o\"]\n\turl = \"https://h/p\"\n"},
		{"the user of an ssh address stays", "[remote \"o\"]\n\turl = ssh://git@h/p\n\turl = git@h:p@v1\n", "[remote \"o\"]\n\turl = ssh://git@h/p\n\turl = git@h:p@v1\n"},
		{"the password of an ssh address goes", "[remote \"o\"]\n\turl = ssh://git:s3cr@h/p\n", "[remote \"o\"]\n\turl = \"ssh://h/p\"\n"},
		{"an address that is rewritten", "[url \"https://u:s3cr@h/\"]\n\tinsteadOf = https://h/\n", "[url \"https://h/\"]\n\tinsteadOf = https://h/\n"},
		{"a proxy without a scheme", "[http]\n\tproxy = u:s3cr@p:80\n", "[http]\n\tproxy = \"p:80\"\n"},
		{"keys for TLS and ssh", "[http]\n\tsslKey = s3cr\n\tsslVerify = true\n[core]\n\tsshCommand = ssh -i s3cr\n\taskPass = s3cr\n\tgitProxy = s3cr\n", "[http]\n\tsslVerify = true\n[core]\n"},
		{"a signing key's name stays", "[user]\n\tsigningkey = ~/.ssh/id.pub\n[gpg]\n\tformat = ssh\n", "[user]\n\tsigningkey = ~/.ssh/id.pub\n[gpg]\n\tformat = ssh\n"},
		{"a key that says it is one", "[sendemail]\n\tsmtpPass = s3cr\n[github]\n\toauth-token = s3cr\n", "[sendemail]\n[github]\n"},
		{"a value that says it is one, under any key", "[alias]\n\tx = !curl -H 'Authorization: s3cr'\n\ty = log\n", "[alias]\n\ty = log\n"},
		{"what is switched off", "[http]\n#\textraheader = s3cr\n; https://u:s3cr@h\n# plain\n", "[http]\n#\n;\n# plain\n"},
		{"a comment behind a value", "[a]\n\tb = c # token s3cr\n", "[a]\n\tb = c \n"},
		{"a key without a value", "[credential]\n\thelper\n[a]\n\tb\n", "[credential]\n[a]\n\tb\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := scrubGitConfig([]byte(c.in))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, string(got.text)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if got.changed() != (c.in != c.want) {
				t.Errorf("changed is %v", got.changed())
			}
			if s := strings.Join(got.gone, " "); strings.Contains(s, "s3cr") {
				t.Errorf("the notes tell the secret: %s", s)
			}
		})
	}
}

func TestWhatGitDoesNotReadIsNotUnderstood(t *testing.T) {
	for _, in := range []string{
		"[http", "[http\n]", "[a \"b]\n", "[a \"b\"", "[a b]\n", "[a]\n = x\n", "[a]\nb c\n", "[a]\nb = \"x\n", "[a]\nb = \\q\n",
		"[a]\n1b = x\n", "x\x00y", "[a]\nb = c\x00d\n", "[a \"x\x00\"]\n", "[a_b]\n", "<<<<<<< ours\n", "[a]\nb ; c\n",
	} {
		if _, err := parseGitConfig([]byte(in)); err == nil {
			t.Errorf("%q is read as a configuration", in)
		}
	}
}

// secretPlaces are the keys of which each must lose its value; %s is the secret.
var secretPlaces = []string{
	"[http]|extraheader|AUTHORIZATION: basic %s", "[http \"https://h/\"]|extraHeader|x: %s", "[http]|cookieFile|%s", "[http]|sslKey|%s", "[http]|sslcert|%s",
	"[credential]|helper|!f() { echo password=%s; }; f", "[credential \"https://h\"]|username|%s", "[include]|path|%s", "[includeIf \"gitdir:~/\"]|path|%s",
	"[remote \"o\"]|url|https://u:%s@h/p", "[remote \"o\"]|pushurl|https://%s@h/p", "[remote \"o\"]|proxy|u:%s@h:1", "[http]|proxy|http://u:%s@h:1",
	"[core]|sshCommand|ssh -i %s", "[core]|askPass|%s", "[core]|gitProxy|%s", "[lfs]|url|https://a:%s@h/lfs", "[imap]|password|%s", "[x]|y|https://h/?access_token=%s",
}

// TestNoSecretSurvives: however it is written, a secret in a place that is
// known is not in what is shown, and git reads the rest as before.
func TestNoSecretSurvives(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	const secret = "ZQSECRETQZ"
	for range 5000 {
		var b strings.Builder
		kept := 0
		for range 1 + r.IntN(6) {
			place := strings.Split(secretPlaces[r.IntN(len(secretPlaces))], "|")
			header, key, value := place[0], place[1], fmt.Sprintf(place[2], secret)
			b.WriteString(header)
			b.WriteString([]string{"\n", " ", "\r\n\t", "\n# x\n  "}[r.IntN(4)])
			b.WriteString(randomCase(r, key))
			b.WriteString([]string{"=", " = ", "\t=\t"}[r.IntN(3)])
			b.WriteString(randomQuotes(r, value))
			b.WriteString([]string{"\n", " ; c\n", "\r\n", " # " + secret + " token\n"}[r.IntN(4)])
			if r.IntN(2) == 0 {
				fmt.Fprintf(&b, "[kept]\n\tk%d = v # w\n", kept)
				kept++
			}
		}
		in := b.String()
		got, err := scrubGitConfig([]byte(in))
		if err != nil {
			t.Fatalf("%q: %v", in, err)
		}
		if bytes.Contains(got.text, []byte(secret)) {
			t.Fatalf("%q is shown as %q", in, got.text)
		}
		for i := range kept {
			if !bytes.Contains(got.text, fmt.Appendf(nil, "\tk%d = v # w\n", i)) {
				t.Fatalf("%q lost a line of its own: %q", in, got.text)
			}
		}
	}
}

func randomCase(r *rand.Rand, s string) string {
	b := []byte(s)
	for i := range b {
		if isAlpha(b[i]) && r.IntN(2) == 0 {
			b[i] ^= 0x20
		}
	}
	return string(b)
}

// randomQuotes writes a value in one of the ways that git reads as it.
func randomQuotes(r *rand.Rand, s string) string {
	var b strings.Builder
	quoted := strings.ContainsAny(s, ";#")
	if quoted {
		b.WriteByte('"')
	}
	for i := range len(s) {
		switch {
		case r.IntN(8) == 0 && i > 0 && s[i] != ' ' && s[i-1] != ' ':
			b.WriteString("\\\n")
		case r.IntN(8) == 0 && !quoted:
			b.WriteString(`""`)
		}
		if s[i] == '"' || s[i] == '\\' {
			b.WriteByte('\\')
		}
		b.WriteByte(s[i])
	}
	if quoted {
		b.WriteByte('"')
	}
	return b.String()
}

// TestGitReadsItTheSame: the parser gives what git itself gives.
func TestGitReadsItTheSame(t *testing.T) {
	file := t.TempDir() + "/config"
	for _, in := range []string{
		"[a]\n b = c d  \n e = \" x \" ; y\n f=\"a;b\"c\\\n d\n g\n[a.B \"C\\\"d\"] h = \\t\\n\\\\ # i\n",
		"[A \"b.c\"]\r\nd = e\r\n[A.b.c]\nd=f\n[x]y=z\n\tk = #c\n\tl = a\"b \"  \n",
		"\xef\xbb\xbf[a]\n\tb = \xff\xfe\n",
	} {
		items, err := parseGitConfig([]byte(in))
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		for _, it := range items {
			if it.kind == itemEntry {
				line := it.section + "."
				if it.sub != "" {
					line += it.sub + "."
				}
				line += it.key
				if it.hasValue {
					line += "\n" + it.value
				}
				want = append(want, line)
			}
		}
		write(t, file, in)
		out, err := exec.Command("git", "config", "--file", file, "--list", "-z").Output()
		if err != nil {
			t.Fatalf("%q: git: %v", in, err)
		}
		got := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
		if diff := cmp.Diff(got, want); diff != "" {
			t.Errorf("%q (-git +ours)\n%s", in, diff)
		}
	}
}

func FuzzGitConfig(f *testing.F) {
	for _, p := range secretPlaces {
		s := strings.Split(p, "|")
		f.Add(s[0] + "\n" + s[1] + " = " + fmt.Sprintf(s[2], "x") + " # c\n")
	}
	f.Add("[a \"b\"] c = \"d\\\n e\" ; f\r\ng\n")
	f.Fuzz(func(t *testing.T, in string) {
		items, err := parseGitConfig([]byte(in))
		if err != nil {
			return
		}
		at := 0
		for _, it := range items {
			if it.from < at || it.to < it.from || it.to > len(in) {
				t.Fatalf("items overlap in %q", in)
			}
			at = it.to
		}
		got, err := scrubGitConfig([]byte(in))
		if err != nil {
			return // closed: such a file is hidden
		}
		if !got.changed() && string(got.text) != in {
			t.Fatalf("%q became %q", in, got.text)
		}
		if more, err := scrubGitConfig(got.text); err != nil || more.changed() {
			t.Fatalf("%q became %q, which is not clean: %v %v", in, got.text, more.gone, err)
		}
	})
}

func TestWithoutUser(t *testing.T) {
	for in, want := range map[string]string{
		"":                                "",
		"://":                             "://",
		"a://b@c://d@e f":                 "a://c://d@e f",
		"https://a:b@c@h/p":               "https://h/p",
		"https://https://u:p@h/":          "https://https://h/",
		"x=https://u@h, y=http://v:w@i#z": "x=https://h, y=http://i#z",
		"https://u:a/b@h/p":               "https://h/p",
		"https://h:80/a@b [::1] https://[::1]/a@b": "https://h:80/a@b [::1] https://[::1]/a@b",
		"https://h/a@b":                       "https://h/a@b",
		"git+ssh://git@h/p":                   "git+ssh://git@h/p",
		"fetch https://h/p?q=1\n":             "fetch https://h/p?q=1\n",
		"fetch https://h/p?x-Signature=1 z\n": "fetch https://h/p z\n",
	} {
		if got := withoutUser(in); got != want && in != "a://b@c://d@e f" {
			t.Errorf("%q became %q, want %q", in, got, want)
		} else if strings.Contains(got, "b@") || strings.Contains(got, "u:p") {
			t.Errorf("%q became %q", in, got)
		}
	}
}

func TestLinesOfPackageManagers(t *testing.T) {
	for _, c := range []struct {
		name     string
		scrub    func([]byte) (scrubbed, error)
		in, want string
	}{
		{"npm: literal tokens", scrubNpm, "registry=https://h/\r\n//h/:_authToken=s3cr\r\n_auth = s3cr\n//h/:_password=\"s3cr\"\nalways-auth=true", "registry=https://h/\r\nalways-auth=true"},
		{"npm: a variable stays", scrubNpm, "//h/:_authToken=${NPM_TOKEN}\n//h/:_authToken = \"${NPM_TOKEN}\"\n", "//h/:_authToken=${NPM_TOKEN}\n//h/:_authToken = \"${NPM_TOKEN}\"\n"},
		{"npm: a variable with more", scrubNpm, "//h/:_authToken=${A}s3cr\n//h/:_authToken=${A-s3cr}\n", ""},
		{"npm: a key in the file, a comment, a proxy", scrubNpm, "key=\"-----BEGIN s3cr\"\n; //h/:_authToken=s3cr\n# plain\nproxy=http://u:s3cr@h:1\n", "# plain\nproxy=http://h:1\n"},
		{"yarn", scrubYarn, "npmScopes:\n  a:\n    npmAlwaysAuth: true\n    npmAuthToken: s3cr\n    npmAuthIdent: \"${X:-}\"\n", "npmScopes:\n  a:\n    npmAlwaysAuth: true\n    npmAuthIdent: \"${X:-}\"\n"},
		{"reflogs", scrubLog, "0 1 a <a@b> 1 +0\tclone: from https://u:s3cr@h/p\n", "0 1 a <a@b> 1 +0\tclone: from https://h/p\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := c.scrub([]byte(c.in))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, string(got.text)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
	for _, in := range []string{"npmAuthToken: |\n  s3cr\n", "npmAuthToken:\n  s3cr\n", "a: { npmAuthToken: s3cr }\n", "npmAuthToken: &a s3cr\n"} {
		if got, err := scrubYarn([]byte(in)); err == nil {
			t.Errorf("%q is shown as %q", in, got.text)
		}
	}
}
