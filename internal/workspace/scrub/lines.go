package scrub

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
)

// scrubNpm takes out of an .npmrc the lines that hold a credential. One that
// names a variable, ${NPM_TOKEN}, holds none, and stays.
func scrubNpm(text []byte) (scrubbed, error) {
	return scrubLines(text, func(line string) (string, string, error) {
		key, value, ok := strings.Cut(line, "=")
		name := strings.TrimSuffix(strings.ToLower(strings.Trim(key, " \t\"'")), "[]")
		if i := strings.LastIndexByte(name, ':'); i >= 0 {
			name = name[i+1:]
		}
		comment := strings.HasPrefix(strings.TrimSpace(line), "#") || strings.HasPrefix(strings.TrimSpace(line), ";")
		switch {
		case comment && talksOfSecrets(line) || comment && strings.Contains(strings.ToLower(line), "_auth"):
			return "", "a comment", nil
		case comment:
			return line, "", nil
		}
		switch strings.TrimLeft(name, "_-") {
		case "auth", "authtoken", "password", "key", "cert", "otp":
			if ok && !onlyVariable(value) {
				return "", name, nil
			}
		}
		if looksSecret(value) {
			return "", name, nil
		}
		if w := withoutUser(line); w != line {
			return w, "a user in " + name, nil
		}
		return line, "", nil
	})
}

// scrubYarn does it for .yarnrc.yml. A value that goes on in further lines is
// not taken apart: such a file is hidden.
func scrubYarn(text []byte) (scrubbed, error) {
	return scrubLines(text, func(line string) (string, string, error) {
		key, value, ok := strings.Cut(line, ":")
		name := strings.Trim(strings.ToLower(strings.TrimLeft(key, " \t-{")), "\"' \t")
		switch name {
		case "npmauthtoken", "npmauthident", "npmpassword":
			v := strings.TrimSpace(value)
			if !ok || v == "" || strings.ContainsAny(v[:1], "|>&*{[!") {
				return "", "", fmt.Errorf("%s is not on one line", name)
			}
			if !onlyVariable(v) {
				return "", name, nil
			}
			return line, "", nil
		}
		low := strings.ToLower(line)
		if strings.Contains(low, "npmauth") && !strings.Contains(low, "npmalwaysauth") || looksSecret(line) {
			return "", "", fmt.Errorf("a token stands where none is looked for")
		}
		if w := withoutUser(line); w != line {
			return w, "a user in " + name, nil
		}
		return line, "", nil
	})
}

// scrubLog takes passwords out of the addresses in a text of git's own.
func scrubLog(text []byte) (scrubbed, error) {
	out := scrubbed{text: text}
	if !bytes.Contains(text, []byte("://")) {
		return out, nil
	}
	if s := withoutUser(string(text)); s != string(text) {
		out.text, out.gone = []byte(s), []string{"a user in an address"}
	}
	return out, nil
}

// variable is ${NAME} and nothing else: not ${NAME-token}.
var variable = regexp.MustCompile(`^["']?\$\{[A-Za-z_][A-Za-z0-9_]*[?]?(:?-)?\}["']?$`)

func onlyVariable(value string) bool { return variable.MatchString(strings.TrimSpace(value)) }

// scrubLines asks about every line without its end. An answer of "" with
// something gone takes the line away.
func scrubLines(text []byte, ask func(line string) (now, gone string, err error)) (scrubbed, error) {
	if bytes.IndexByte(text, 0) >= 0 {
		return scrubbed{}, fmt.Errorf("a NUL byte in a text")
	}
	var out scrubbed
	var b bytes.Buffer
	for full := range bytes.Lines(text) {
		line := bytes.TrimRight(full, "\r\n")
		now, gone, err := ask(string(line))
		if err != nil {
			return scrubbed{}, err
		}
		if gone == "" {
			b.Write(full)
			continue
		}
		out.gone = append(out.gone, gone)
		if now != "" {
			b.WriteString(now)
			b.Write(full[len(line):])
		}
	}
	out.text = b.Bytes()
	return out, nil
}
