// Package archive packs a workspace into a .tar.gz and puts one back, by the
// rules of kern-sandbox: an archive holds regular files and folders and nothing
// else, and one that names an absolute path, a path with "..", a link or a
// device is refused whole.
//
// What it owns is the way between the two. Write reads no link, FIFO or device
// and says what it left out; the same tree gives the same bytes, whoever packs
// it. Restore reads the archive twice: the first time it writes nothing and
// judges every entry, beside what stands in the workspace; the second time all
// content goes into a folder of its own, and only when the last byte of it is
// there are the files renamed into place. So an archive that is refused, cut
// short or too large leaves the workspace as it was.
//
// No path is ever followed through a link on the way, in either direction: a
// step may have put one where the next restore will write. A file that is
// replaced is replaced by name, so that a second name of it elsewhere keeps its
// content.
//
//	s, err := archive.Write(ctx, workspace, file, archive.Options{})
//	s, err = archive.Restore(ctx, workspace, file, archive.Options{})
//	var refused *archive.RefusedError // names the entry and says why
//
// What it does not do: it removes nothing that the archive does not name, and
// keeps neither owners nor set-id bits nor extended attributes.
package archive
