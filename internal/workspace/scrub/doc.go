// Package scrub finds what in a workspace is secret, and makes the layer that
// keeps it out of a box: files that are shown without their secrets, and paths
// that are shown as absent. The files themselves are never touched.
//
// It owns the knowledge of where a checkout, a package manager or a person
// leaves a token: git configurations at any depth, the files these include, and
// well-known files of credentials; and, where the caller's home lies in the
// workspace, the folders of credentials there.
//
// It refuses to guess. A configuration that cannot be read to the end the way
// git reads it is hidden whole, because a token could stand in the part that was
// not understood. It follows no link: where a configuration is one, the link is
// hidden, and what it leads to is looked at as what it is, inside the workspace
// only. A note names what is hidden and never says what was in it.
//
//	m, err := scrub.Find(ctx, workspace, scrub.Options{Home: home})
//	if err == nil && !m.Empty() {
//		err = m.Write(layer, uid, gid) // then mount layer above the workspace
//	}
//
// What it does not do: it does not look for tokens in source files, in a
// project's .env or in git's objects. Those are the project's data, and a step
// is run to work on them.
package scrub
