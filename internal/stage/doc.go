// Package stage puts a box's root together, in a mount namespace that nobody else
// sees: mounts of the host's files, places for them, files that are made up.
//
// It is where no link is followed. An image, or a folder that a step could write to
// before, may hold links that lead out of the root, and what is mounted or written
// would land there; so each path is walked part by part, through descriptors.
//
// Boxes wait for it: it imports little, as package boxinit says.
package stage
