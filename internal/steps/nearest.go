package steps

import "strings"

// foreign are the names other tools have for what we have too.
var foreign = map[string]string{
	"timeout": "timeoutS", "timeout-minutes": "timeoutS", "timeoutms": "timeoutS",
	"memory": "memoryMb", "mem": "memoryMb", "memorymb": "memoryMb", "cpu": "cpus", "pids-limit": "pids",
	"working-directory": "workdir", "cwd": "workdir", "shell": "language", "script": "run", "cmd": "command",
	"args": "command", "entrypoint": "command", "continue-on-error": "continueOnError", "allowfailure": "continueOnError",
	"environment": "env", "secrets": "passEnv", "egress": "egressAllow", "allow": "egressAllow",
	"allowed-endpoints": "egressAllow", "volumes": "mounts", "depends_on": "needs", "dependson": "needs",
	"container": "image", "rootfs": "image", "title": "name",
}

// workflowKeys are those of a workflow's step that are nothing of ours by another
// name: what is done instead, and the key of ours that stands in their place.
var workflowKeys = map[string]struct{ instead, standsFor string }{
	"uses": {"a step runs a script or a command; an action is used in the workflow, before or after this program's", "run"},
	"with": {"these are the inputs of an action; a script is given env, and a command its arguments", ""},
	"if":   {"a step always runs, unless one that it needs did not pass; the script itself can ask for more", ""},
	// And one of kern-sandbox's options.
	"prewarm": {"steps of a file see what those before them left, so no box can be ready for one; a Go program's calls can have them (docs/cells.md)", ""},
}

// Nearest finds the word that was probably meant; empty if none is near.
func Nearest(word string, words []string) string {
	if len(word) > 64 {
		return ""
	}
	lower := strings.ToLower(word)
	best, bestAt := "", 1+len(lower)/3
	for _, w := range words {
		if foreign[lower] == w {
			return w
		}
		if d := distance(lower, strings.ToLower(w)); d < bestAt {
			best, bestAt = w, d
		}
	}
	return best
}

// distance counts the changes that turn one word into the other: a letter put
// in, left out or replaced, or two neighbours swapped.
func distance(a, b string) int {
	before, last, now := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		now[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			now[j] = min(last[j]+1, now[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				now[j] = min(now[j], before[j-2]+1)
			}
		}
		before, last, now = last, now, before
	}
	return last[len(b)]
}
