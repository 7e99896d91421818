// Package build is what engine native's box is built by: the box's own first
// process, which is this program started once more in the box's namespaces.
//
// It gets a Setup from package native, which plans it, makes the mounts, enters
// the new root and serves the box (package boxinit).
//
// It imports little, and nothing that imports much: whatever it imports is set up
// in every box before the box is built.
package build
