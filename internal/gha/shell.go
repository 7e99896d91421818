package gha

import "strings"

// plainWord are the characters that mean themselves to every shell, wherever in a
// word they stand.
const plainWord = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+@%=:,"

// ShellWord makes a text one word of a command that people are told to type: a
// name that others chose must be no more than a name in the shell it is pasted
// into. It does not make the text inert, which who prints the command does.
func ShellWord(text string) string {
	if strings.Trim(text, plainWord) == "" && text != "" {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
