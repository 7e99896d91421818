package gha

import (
	"errors"
	"strings"
)

// Inputs are the inputs of the action as the workflow gave them; empty where it
// gave none. None of them has been checked.
type Inputs struct {
	File      string // a steps file
	Steps     string // or the steps themselves, as YAML
	Workspace string
	Engine    string
	Jobs      string
	Out       string
	Policy    string // a ceiling over what the steps may ask for
	// AllowEvents names events that are refused unless they are in it.
	AllowEvents string

	// What a pull request is told, and with which token. The token is a secret.
	CheckRun     string
	CheckName    string
	Comment      string
	CommitStatus string
	Token        string
	Shard        string // i/n
	Durations    string // a report.json
	Merge        string // a folder of reports
	HostSetup    string // how much may be added to the machine
}

// TokenVariables are where the token comes in. Whoever has read it removes them.
var TokenVariables = []string{inputPrefix + "TOKEN", "INPUT_TOKEN"}

// inputPrefix is what action.yml puts before an input's name. A composite action
// must hand its inputs on itself, and through variables: written into a script,
// an input would be run.
const inputPrefix = "UNTRUSTED_STEPS_"

// Inputs reads the inputs from the variables that action.yml sets, else from
// those that a runner sets. Beside an error stands all that was read, since the
// error has to be told where they say.
func (e Env) Inputs() (Inputs, error) {
	a := e.action()
	get := func(name string) string {
		// A shell's variable has no dash in its name.
		if v := strings.TrimSpace(e.Getenv(inputPrefix + strings.ToUpper(strings.ReplaceAll(name, "-", "_")))); v != "" {
			return v
		}
		return a.GetInput(name)
	}
	in := Inputs{
		File:      get("file"),
		Workspace: get("workspace"),
		Engine:    get("engine"),
		Jobs:      get("jobs"),
		Out:       get("out"),
		Policy:    get("policy"), AllowEvents: get("allow-events"),

		CheckRun:     get("check-run"),
		CheckName:    get("check-name"),
		Comment:      get("comment"),
		CommitStatus: get("commit-status"),
		Token:        get("token"),
		Shard:        get("shard"),
		Durations:    get("durations"),
		Merge:        get("merge"),
		HostSetup:    get("host-setup"),
	}
	// Not trimmed: the spaces before the first line of YAML are part of it.
	for _, name := range []string{inputPrefix + "STEPS", "INPUT_STEPS"} {
		if v := e.Getenv(name); strings.TrimSpace(v) != "" {
			in.Steps = v
			break
		}
	}
	switch {
	case in.File != "" && in.Steps != "":
		return in, errors.New("the inputs file and steps are both set; give one of them")
	case in.File == "" && in.Steps == "" && in.Merge == "":
		return in, errors.New("neither of the inputs file and steps is set; name a steps file in file, or write the list in steps")
	}
	return in, nil
}
