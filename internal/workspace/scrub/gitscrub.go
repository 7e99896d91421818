package scrub

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// scrubbed is a text without its secrets.
type scrubbed struct {
	text  []byte
	gone  []string // what is not in it any more, for people
	files []string // paths that what is gone named: of an include, a key, a cookie jar
	tools []string // the same, of a program that starts in the working tree
}

func (s *scrubbed) changed() bool { return len(s.gone) > 0 }

// byCheckout says whether what is gone is how actions/checkout persists the
// credentials it fetched with: a header for requests, or since its version 6 a
// file beside the job's own that is included.
func (s *scrubbed) byCheckout() bool {
	return slices.ContainsFunc(s.gone, func(g string) bool { return strings.HasSuffix(strings.ToLower(g), ".extraheader") }) ||
		slices.ContainsFunc(s.files, func(f string) bool { return strings.Contains(f, "git-credentials-") })
}

// edit replaces the bytes from..to.
type edit struct {
	from, to int
	by       string
}

// scrubGitConfig takes the secrets out of a git configuration. What is left is
// byte for byte what was there.
func scrubGitConfig(text []byte) (scrubbed, error) {
	out, err := scrubGitOnce(text)
	if err != nil || !out.changed() {
		return out, err
	}
	// What was written is read again: a secret that became one only by our
	// edit, or that an edit missed, must not be shown.
	again, err := scrubGitOnce(out.text)
	if err == nil && again.changed() {
		err = fmt.Errorf("%w: a secret is left after it was taken out", errSyntax)
	}
	return out, err
}

func scrubGitOnce(text []byte) (scrubbed, error) {
	items, err := parseGitConfig(text)
	if err != nil {
		return scrubbed{}, err
	}
	var out scrubbed
	var edits []edit
	for _, it := range items {
		switch it.kind {
		case itemComment:
			if s := string(text[it.from:it.to]); talksOfSecrets(s) {
				edits = append(edits, edit{it.from, it.to, s[:1]})
				out.gone = append(out.gone, "a comment")
			}
		case itemHeader:
			if s := withoutUser(it.quoted); s != it.quoted {
				edits = append(edits, edit{it.quotedFrom, it.quotedTo, quoteGit(s)})
				out.gone = append(out.gone, "a user in ["+it.section+" "+quoteGit(s)+"]")
			}
		case itemEntry:
			drop, value, files := judge(it)
			switch {
			case drop:
				edits = append(edits, removal(text, it.from, it.to))
				out.gone = append(out.gone, it.fullName())
				if it.section == "core" || it.section == "credential" {
					out.tools = append(out.tools, files...)
				} else {
					out.files = append(out.files, files...)
				}
				continue
			case value != it.value:
				edits = append(edits, edit{it.valueFrom, it.valueTo, quoteGit(value)})
				out.gone = append(out.gone, "a user in "+it.fullName())
			}
			if s := string(text[it.comment:it.to]); s != "" && talksOfSecrets(s) {
				edits = append(edits, edit{it.comment, it.to, ""})
				out.gone = append(out.gone, "a comment behind "+it.fullName())
			}
		}
	}
	out.text = apply(text, edits)
	return out, nil
}

// fullName is section.sub.key, without a user that the subsection may name.
func (it item) fullName() string {
	if it.sub == "" {
		return it.section + "." + it.key
	}
	return it.section + "." + withoutUser(it.sub) + "." + it.key
}

// removal takes a whole line if the bytes are alone on it. Only spaces may
// stand before them: behind [section] on the same line the line stays.
func removal(text []byte, from, to int) edit {
	start := from
	for start > 0 && (text[start-1] == ' ' || text[start-1] == '\t') {
		start--
	}
	if start > 0 && text[start-1] != '\n' {
		return edit{from, to, ""}
	}
	end := to
	if end < len(text) && text[end] == '\r' {
		end++
	}
	if end < len(text) && text[end] == '\n' {
		end++
	}
	return edit{start, end, ""}
}

func apply(text []byte, edits []edit) []byte {
	if len(edits) == 0 {
		return text
	}
	var b bytes.Buffer
	at := 0
	for _, e := range edits {
		b.Write(text[at:e.from])
		b.WriteString(e.by)
		at = e.to
	}
	b.Write(text[at:])
	return b.Bytes()
}

// judge says what becomes of an entry. Sections that exist to name credentials,
// or files with more configuration, go whole; of the others the keys that are
// known to hold a secret, or to lead to one, and those whose name or value looks
// like one. A key too many is a setting that a step does without.
func judge(it item) (drop bool, value string, files []string) {
	value = it.value
	switch it.section {
	case "include", "includeif":
		return true, "", []string{it.value}
	case "credential":
		return true, "", helperFiles(it.value)
	case "http", "https":
		switch it.key {
		case "extraheader":
			return true, "", nil
		case "cookiefile", "sslkey", "sslcert", "proxysslkey", "proxysslcert", "sslcertpasswordprotected", "proxysslcertpasswordprotected":
			return true, "", []string{it.value}
		}
	case "core":
		switch it.key {
		case "sshcommand", "askpass", "gitproxy":
			return true, "", commandFiles(it.value)
		}
	}
	if slices.ContainsFunc(secretWords, func(w string) bool { return strings.Contains(it.key, w) || strings.Contains(it.section, w) }) {
		return true, "", nil
	}
	value = withoutUser(value)
	switch it.key {
	case "url", "pushurl", "proxy":
		value = withoutBareUser(value)
	}
	return looksSecret(value), value, nil
}

// secretWords in the name of a key, or of a section, say that its value is one.
var secretWords = []string{"password", "passwd", "smtppass", "passphrase", "token", "secret", "apikey", "api-key", "oauth", "privatekey", "private-key"}

// secretMarks in a value say that it holds one, whatever the key.
var secretMarks = []string{"x-access-token", "-----begin", "authorization:", "bearer ", "private-token"}

// issued are tokens with the beginnings that issuers give them, so that they
// can be found.
var issued = regexp.MustCompile(`gh[pousr]_[A-Za-z0-9]{16}|github_pat_[A-Za-z0-9_]{16}|gl(pat|dt|cbt|ptt|rt)-[A-Za-z0-9_-]{16}|npm_[A-Za-z0-9]{16}|pypi-[A-Za-z0-9_-]{16}|xox[bpars]-[A-Za-z0-9-]{10}|AKIA[A-Z0-9]{16}`)

func looksSecret(s string) bool {
	low := strings.ToLower(s)
	return slices.ContainsFunc(secretMarks, func(m string) bool { return strings.Contains(low, m) }) || issued.MatchString(s)
}

// talksOfSecrets is for comments: an entry that somebody switched off still
// holds its token.
func talksOfSecrets(s string) bool {
	low := strings.ToLower(s)
	return looksSecret(s) || withoutUser(s) != s || strings.Contains(low, "extraheader") ||
		slices.ContainsFunc(secretWords, func(w string) bool { return strings.Contains(low, w) })
}

// helperFiles are the files that a credential helper is told to keep its
// passwords in.
func helperFiles(value string) []string {
	var out []string
	words := strings.Fields(value)
	for i, w := range words {
		if f, ok := strings.CutPrefix(w, "--file="); ok {
			out = append(out, strings.Trim(f, `"'`))
		} else if w == "--file" && i+1 < len(words) {
			out = append(out, strings.Trim(words[i+1], `"'`))
		}
	}
	return out
}

// commandFiles are the keys and configurations that an ssh command names.
func commandFiles(value string) []string {
	var out []string
	words := strings.Fields(value)
	for i, w := range words {
		w = strings.Trim(w, `"'`)
		switch {
		case (w == "-i" || w == "-F") && i+1 < len(words):
			out = append(out, strings.Trim(words[i+1], `"'`))
		case strings.HasPrefix(w, "-i") || strings.HasPrefix(w, "-F"):
			out = append(out, w[2:])
		}
		if at := strings.Index(strings.ToLower(w), "identityfile="); at >= 0 {
			out = append(out, w[at+len("identityfile="):])
		}
	}
	return out
}
