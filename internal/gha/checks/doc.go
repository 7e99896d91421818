// Package checks tells a pull request what came of a run, where a workflow asks
// for it: a check run with annotations, one comment that is kept up to date, a
// commit status. It is the one place that talks to the API of GitHub.
//
// It is decoration. Nothing it does or fails to do reaches the exit status: a
// token that may only read, as every pull request from a fork has, an API that
// is down and one that has had enough of us each end in a line of the log.
//
// The flow is Locate, Make, Publish. Locate finds the commit and the pull
// request, from what the runner says and from an event that its sender wrote.
// Make is pure: from a result it gives the requests as values, every text in
// them inert, masked and within the limits of the API. Publish sends them, and
// is the only part that holds the token.
//
// It refuses to send the token to any host but the API's own, to follow a
// redirect elsewhere, to touch a comment that is not its own, to write to a
// commit that is not the one that ran, and to wait for longer than Total.
//
//	place, err := checks.Locate(os.Getenv)
//	plan := checks.Make(checks.Input{Result: r, Want: want, Place: place, Mask: masker.Mask})
//	notes := checks.Publisher{Token: token, Now: time.Now, Jitter: rand.Float64}.Publish(ctx, place, plan)
package checks
