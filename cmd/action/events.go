package main

import (
	"fmt"
	"slices"
	"strings"
)

// privileged are the events whose jobs have the secrets and the writing token of
// the base repository while what they look at is a stranger's: one step that
// gets out, or one cache that it writes, and the stranger has them too.
var privileged = []string{"pull_request_target", "workflow_run", "issue_comment"}

// eventAllowed refuses to run for such an event, unless it was named. ok is false
// when code is the exit status.
func (a *app) eventAllowed(o *options) (code int, ok bool) {
	allowed := strings.FieldsFunc(o.allowEvents, func(c rune) bool { return c == ',' || c == ' ' || c == '\n' || c == '\t' || c == '\r' })
	for _, e := range allowed {
		if !slices.Contains(privileged, e) {
			return a.next(a.wrong("--allow-events %q: the events that are refused, and can be allowed, are %s", e, strings.Join(privileged, ", ")),
				"name some of these, separated by commas; any other event needs no word"), false
		}
	}
	event := a.getenv("GITHUB_EVENT_NAME")
	switch {
	case !slices.Contains(privileged, event):
		return 0, true
	case slices.Contains(allowed, event):
		a.warn(o, fmt.Sprintf("this run is for %s, whose jobs hold the base repository's secrets and its writing token; allow-events names it", event))
		return 0, true
	}
	code = a.next(a.wrong("the event %s is privileged: its jobs hold the base repository's secrets and its writing token, so untrusted steps are not run in one; nothing ran", event),
		"run them on pull_request, whose token can only read")
	return a.next(code, fmt.Sprintf("or name the event: allow-events: %s (--allow-events %s)", event, event)), false
}

// warnOfToken says that the job may ask for an identity token. No box sees the
// variables, but all other steps of the job do, and the one who asks can sign.
func (a *app) warnOfToken(o *options) {
	if a.getenv("ACTIONS_ID_TOKEN_REQUEST_URL") == "" {
		return
	}
	a.warn(o, "this job may ask for an OIDC token (permissions: id-token: write); no box gets it, and a gate needs none: "+
		"take id-token: write out of this job's permissions, and sign or deploy in another job")
}
