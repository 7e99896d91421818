// Package commit keeps what steps write apart from the workspace until it is
// known to be wanted, and then makes it the workspace's in one go.
//
// It owns a folder beside the workspace, the store. Every run has a folder in
// it, and every step a transaction: an upper and a work folder for an overlay.
// A step that ended badly is dropped with them. One that ended well is
// committed in four phases:
//
//  1. Stage. New contents become plain files in the store. A disk that is full
//     shows here, and the workspace is as it was.
//  2. Journal. What is to be done is written down and renamed into place. That
//     rename is the commit: before it the workspace is the old one, and after
//     it everything needed for the new one is at hand.
//  3. Apply. Every path is made what the journal says it is afterwards. Doing
//     so twice is doing so once.
//  4. The journal is removed, and then what is left of the transaction.
//
// A process may be killed at any moment: the next Open of the same workspace
// completes what has a journal and drops what has none. Nothing is flushed to
// the disk unless Options.Sync is set, so without it a commit survives the end
// of its process, and not that of the machine.
//
// It refuses to follow a link, in the workspace or in what a step wrote; to
// make a FIFO, a socket or a device; to give a set-id bit, a file capability or
// any other extended attribute; to believe a store that somebody else could
// have written to; and to apply a journal to any folder but the one it was
// written for.
//
//	store, err := commit.Open(workspace, commit.Options{StateDirs: dirs})
//	txn, err := store.New("build")
//	// the step runs on an overlay of txn.Upper() and txn.Work(), and ends
//	result, err := txn.Commit(ctx, changes, txn.Upper()) // or txn.Drop()
//	err = store.Close()
//
// What is committed belongs to the workspace's owner where we are root, and to
// us otherwise.
package commit
