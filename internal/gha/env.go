package gha

import (
	"fmt"
	"io"

	githubactions "github.com/sethvargo/go-githubactions"
)

// Env is the place an action runs in.
type Env struct {
	// Getenv looks a variable up, as os.Getenv does.
	Getenv func(string) string
	// Out is where commands to the runner go: the writer that Log.Commands
	// hands out, so that none is printed while commands are switched off.
	Out io.Writer
}

func (e Env) action() *githubactions.Action {
	out := e.Out
	if out == nil {
		out = io.Discard
	}
	return githubactions.New(githubactions.WithGetenv(e.Getenv), githubactions.WithWriter(out))
}

// try turns the library's panics, which is how it reports a failed write, into
// errors.
func try(what string, fn func()) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%s: %v", what, r)
		}
	}()
	fn()
	return nil
}
