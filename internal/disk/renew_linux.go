package disk

// reusable is how much a step may have written for its file system to be used
// again: to empty one takes longer then than to make another.
const (
	reusableBytes  = 4 << 20
	reusableInodes = 256
)

// Renew makes the room of a step that is over as good as new, and says whether it
// did. Only a file system of its own can be: what is left of a step in its blocks
// is never handed to another, which reads files and not blocks. A room that was
// not renewed is still to be closed.
func (r *Room) Renew() bool {
	l, ok := r.place.(*loop)
	if !ok {
		return false
	}
	r.rest()
	u, err := l.usage()
	if err != nil || u.Full || u.Bytes > reusableBytes || u.Inodes > reusableInodes {
		return false
	}
	return removeContents(l.dir) == nil && makeFolders(l.dir, r.opt) == nil
}
