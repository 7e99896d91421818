package steps

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/disk"
	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace/clone"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace/commit"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace/delta"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace/scrub"
)

// Tree is the caller's workspace as the steps of a run find it and change it. A
// step gets a view of it, writes to a layer of its own, and what it wrote is
// kept or dropped when it is over. Its methods may be called by several steps
// at once.
type Tree struct {
	workspace string // real path
	store     *commit.Store
	places    []string // where a store may be, by every name
	images    disk.Images
	owner     owner
	home      string
	mask      scrub.Mask
	persisted []string // configurations of git with the credentials of a checkout
	maskDir   string   // "" if nothing is hidden
	mounts    []string // what of it is a mount of its own, relative to it
	bottom    string   // the workspace, or what stands for it where it must stay as it is
	shadow    *commit.Store

	mu       sync.Mutex
	seq      int      // of the last view that was kept
	kept     []*layer // not yet in the workspace, the newest first
	setups   []*layer // what setups wrote, for as long as the run takes
	recent   []*layer // kept while a view was open that is still open, in order
	open     map[*view]struct{}
	broken   map[string]error // by the step whose kept changes could not be committed
	lost     []error          // of changes of the host's, likewise
	spare    *spare           // for the step that is to come
	closing  sync.WaitGroup
	left     sync.Mutex
	leftover []error              // of taking things away
	unused   map[roomSize][]ready // of steps that are over
	held     []*os.File           // records of kept setups that steps see
	copies   string               // why steps get a copy instead of an overlay; "" for an overlay
	half     error                // of a commit that stopped half way
	bare     error                // why what is secret may show by now, so that no step may look
}

type owner struct {
	uid, gid int
	mode     os.FileMode
}

// layer is what one step wrote and its run keeps.
type layer struct {
	seq     int
	id      string
	changes []workspace.Change
	after   string // where contents are, for an engine
	held    string // and for us: nobody can put another in its place
	txn     *commit.Txn
	room    *disk.Room // nil once it is taken away

	// host: it is no step's but the host's own, made by the calls with these ids.
	host  bool
	calls []string
	// secret: there is something in it that no step may see.
	secret bool
	// saw is the last layer that whoever made this one found there.
	saw int

	byPath map[string]workspace.Change // of changes, for at; nil until it is asked
}

// TreeOptions say how a workspace is to be treated.
type TreeOptions struct {
	Home      string   // the caller's, whose credentials no box sees
	StateDirs []string // where transactions may live if not beside the workspace
	OnlyShow  bool     // --only-report: steps see what earlier ones did, and the workspace stays as it is
}

// OpenTree makes the workspace ready for steps: what a killed run left is
// completed or dropped, and secrets are found. The notes are for the report.
func OpenTree(ctx context.Context, dir string, o TreeOptions) (t *Tree, notes []string, err error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return nil, nil, fmt.Errorf("look at the workspace: %w", err)
	}
	if why := notOwner(os.Geteuid(), int(st.Uid), userName); why != "" {
		return nil, nil, &FolderError{why, fmt.Sprintf("sudo chown -R %d:%d %s", os.Geteuid(), os.Getegid(), gha.ShellWord(dir))}
	}
	if err := closed(dir, st.Mode); err != nil {
		return nil, nil, err
	}
	store, err := commit.Open(dir, commit.Options{StateDirs: o.StateDirs})
	if err != nil {
		return nil, nil, err
	}
	t = &Tree{
		workspace: dir, bottom: dir, home: o.Home, store: store, places: allResolved(commit.Places(dir, commit.Options{StateDirs: o.StateDirs})),
		broken: map[string]error{}, unused: map[roomSize][]ready{}, open: map[*view]struct{}{},
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.Close())
		}
	}()
	notes = append(notes, store.Recovered()...)
	if passed := store.Passed(); len(passed) > 0 {
		notes = append(notes, fmt.Sprintf("what steps write is kept in %s; not used: %s", store.Path(), strings.Join(passed, "; ")))
	}
	t.owner = owner{int(st.Uid), int(st.Gid), os.FileMode(st.Mode & 0o777)}
	if t.copies = otherGroup(os.Geteuid(), os.Getegid(), int(st.Gid), dir); t.copies != "" {
		t.owner.gid = os.Getegid()
	}
	if os.Geteuid() == 0 { // whoever else runs boxes owns the workspace, or is told so
		if note := ofOthers(dir, t.owner); note != "" {
			notes = append(notes, note)
		}
	}
	if t.mask, err = scrub.Find(ctx, dir, scrub.Options{Home: o.Home}); err != nil {
		return t, notes, fmt.Errorf("find the secrets in the workspace: %w", err)
	}
	notes = append(notes, t.mask.Notes...)
	t.persisted = t.mask.Checkout
	if err := t.writeMask(); err != nil {
		return t, notes, err
	}
	// What is mounted inside the workspace would not be seen through an overlay.
	switch inside, err := mountedInside(dir); {
	case err != nil:
		t.copies = fmt.Sprintf("what is mounted inside the workspace cannot be known: %v", err)
	case len(inside) > 0:
		t.copies = fmt.Sprintf("%s is mounted inside the workspace", filepath.Join(dir, inside[0]))
		t.mounts = inside
	}
	if o.OnlyShow {
		err = t.makeShadow(ctx)
	}
	return t, notes, err
}

// Persisted are the configurations of git, below the workspace, in which a
// checkout had left its credentials when the run began. No step sees them.
func (t *Tree) Persisted() []string { return t.persisted }

// notOwner says why a user cannot run steps on a workspace: what a step writes is
// made as the workspace's owner, which only root can do for somebody else. "" if
// the user can.
func notOwner(user, owner int, name func(uid int) string) (why string) {
	if user == 0 || user == owner {
		return ""
	}
	return fmt.Sprintf("the workspace belongs to %s (uid %d), and this is uid %d: run as its owner, or give it to this account", name(owner), owner, user)
}

// otherGroup says why a user's steps get copies: a box has one group, the user's
// own. The layer of a step may not be given to a group that he is not in, and
// through an overlay no file of another group can be changed, whoever is in it
// (EOVERFLOW). In a copy all is of his own. "" if they get an overlay. Root's boxes
// have the group of the workspace.
func otherGroup(user, own, group int, dir string) (why string) {
	if user == 0 || own == group {
		return ""
	}
	return fmt.Sprintf("it belongs to group %d, and this account's is %d, the only one in a box; to spare the copies: chgrp -R %d %s", group, own, own, gha.ShellWord(dir))
}

// FolderError is a workspace whose own folder lets no step of this user's work in
// it: by its owner or by its mode.
type FolderError struct{ why, fix string }

func (e *FolderError) Error() string { return e.why }

// Fix is what to type.
func (e *FolderError) Fix() []string { return []string{e.fix} }

// closed is about a mode that keeps the owner out. Steps work as the owner, also
// where root runs them.
func closed(dir string, mode uint32) error {
	if mode&0o700 == 0o700 {
		return nil
	}
	return &FolderError{
		fmt.Sprintf("the mode of %s is %04o, so its owner, which steps work as, may not read, write and enter it", dir, mode&0o7777),
		"chmod u+rwx " + gha.ShellWord(dir),
	}
}

// userName is the name of an account, if it has one.
func userName(uid int) string {
	u, err := user.LookupId(strconv.Itoa(uid))
	if err != nil {
		return "nobody that has a name here"
	}
	return inert(u.Username)
}

// Close takes away all that is not committed. A commit that could not be
// completed stays for the next run.
func (t *Tree) Close() error {
	t.mu.Lock()
	unused := t.spare
	t.spare = nil
	t.mu.Unlock()
	if unused != nil {
		txn, room, err := unused.wait()
		t.away(txn, room, roomSize{}, err)
	}
	t.closing.Wait()
	err := errors.Join(errors.Join(t.leftover...), t.closeSetups())
	for _, list := range t.unused {
		for _, p := range list {
			err = errors.Join(err, closeRoom(p.room))
		}
	}
	for _, f := range t.held {
		f.Close()
	}
	t.held = nil
	if t.shadow != nil {
		err = errors.Join(err, t.shadow.Close())
	}
	return errors.Join(err, t.store.Close())
}

// view is the workspace as one step sees it.
type view struct {
	t     *Tree
	id    string
	size  roomSize
	seq   int
	stack []delta.Layer // top first, the workspace last
	mask  scrub.Mask    // what is hidden in it
	txn   *commit.Txn
	room  *disk.Room
	why   string     // it is a copy and not an overlay; "" for an overlay
	whole disk.Usage // what the copy was given room for besides
	base  disk.Usage // what it has by itself
	// absent are what the copy lacks, which the step did not delete.
	absent []string
	full   <-chan struct{} // closed when too much was written at some time
	over   *layer          // what the step's setup wrote; nil for none
	// protect are places in the box, below the workspace, that the step only reads.
	protect []string
}

// view opens the workspace for a step: the state as it is now, which nothing
// changes until the view is closed.
// over is what the step's setup wrote, which lies over that state; nil for none.
func (t *Tree) view(ctx context.Context, s PlanStep, over *layer) (*view, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.half != nil {
		return nil, fmt.Errorf("the workspace holds half of a commit, which the next run completes: %w", t.half)
	}
	if t.bare != nil {
		return nil, fmt.Errorf("what is secret in the workspace cannot be hidden any more: %w", t.bare)
	}
	if len(t.kept) >= mostKept {
		return nil, errKept
	}
	v := &view{t: t, id: s.ID, size: sizeOf(s), seq: t.seq, mask: t.mask, why: t.copies, over: over}
	err := v.begin(s)
	if err != nil {
		return nil, err
	}
	if over != nil && v.why == "" {
		v.stack = append(v.stack, delta.Layer{Dir: over.after, Marks: true})
	}
	for _, l := range t.kept {
		v.stack = append(v.stack, delta.Layer{Dir: l.after, Marks: true})
	}
	if t.maskDir != "" {
		v.stack = append(v.stack, delta.Layer{Dir: t.maskDir, Marks: true})
	}
	v.stack = append(v.stack, delta.Layer{Dir: t.bottom})
	if v.why == "" {
		if err := v.takeMode(); err != nil {
			v.close()
			return nil, fmt.Errorf("give the step's layer the mode of the workspace: %w", err)
		}
	}
	if v.why != "" {
		v.size = roomSize{} // and more, for the copy
		if err := v.makeCopy(ctx, s); err != nil {
			v.close()
			return nil, err
		}
	}
	t.open[v] = struct{}{}
	return v, nil
}

// inodesPerMiB is how many files a step may have for each MiB of diskMb.
const inodesPerMiB = 256

func (t *Tree) roomOptions(s PlanStep, txn *commit.Txn) disk.Options {
	return disk.Options{
		Dir: txn.Dir(), At: txn.At(), Bytes: s.DiskMb << 20, Inodes: s.DiskMb * inodesPerMiB, MemoryBytes: s.MemoryMb << 20,
		Root: os.Geteuid() == 0, UID: t.owner.uid, GID: t.owner.gid, Mode: t.owner.mode, Images: &t.images,
	}
}

// ready is what a view is made of, as good as new.
type ready struct {
	txn  *commit.Txn
	room *disk.Room
}

// takeMode gives the step's layer the mode that the workspace has now, which is
// what the box sees of it: a step before can have changed it. t.mu is held.
func (v *view) takeMode() error {
	top := v.t.bottom
	if len(v.t.kept) > 0 {
		top = v.t.kept[0].after
	}
	st, err := os.Stat(top)
	if err != nil {
		return err
	}
	return os.Chmod(v.room.Upper(), st.Mode()&(os.ModePerm|os.ModeSetuid|os.ModeSetgid|os.ModeSticky))
}

// spare is what a step's view is made of, made before the step begins.
type spare struct {
	size roomSize
	done chan struct{}
	txn  *commit.Txn
	room *disk.Room
	err  error
}

// roomSize is what a room depends on.
type roomSize struct{ disk, memory int64 }

func sizeOf(s PlanStep) roomSize { return roomSize{s.DiskMb, s.MemoryMb} }

func (p *spare) wait() (*commit.Txn, *disk.Room, error) {
	<-p.done
	return p.txn, p.room, p.err
}

// Prepare begins to make what a step's view will be made of, while another step
// runs. It is of no use where a step gets a copy: that is of the state it finds.
func (t *Tree) Prepare(s PlanStep) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.copies != "" || t.spare != nil {
		return
	}
	p := &spare{size: sizeOf(s), done: make(chan struct{})}
	t.spare = p
	go func() {
		defer close(p.done)
		p.txn, p.room, p.err = t.make(s)
	}()
}

// make makes a transaction with room for what the step writes.
func (t *Tree) make(s PlanStep) (_ *commit.Txn, _ *disk.Room, err error) {
	t.left.Lock()
	var p ready
	if list := t.unused[sizeOf(s)]; len(list) > 0 {
		p, t.unused[sizeOf(s)] = list[len(list)-1], list[:len(list)-1]
	}
	t.left.Unlock()
	if p.txn == nil {
		if p.txn, err = t.transactions().New(s.ID); err != nil {
			return nil, nil, errors.Join(err, closeRoom(p.room))
		}
	}
	p.txn.For(s.ID)
	if p.room == nil {
		if p.room, err = disk.Open(t.roomOptions(s, p.txn)); err != nil {
			return nil, nil, errors.Join(err, p.txn.Drop())
		}
	}
	return p.txn, p.room, nil
}

func closeRoom(r *disk.Room) error {
	if r == nil {
		return nil
	}
	return r.Close()
}

// begin gives the view its transaction and, for an overlay, its room. t.mu is held.
func (v *view) begin(s PlanStep) (err error) {
	if v.why != "" {
		v.txn, err = v.t.transactions().New(s.ID)
		return err
	}
	p := v.t.spare
	v.t.spare = nil
	if p != nil {
		v.txn, v.room, err = p.wait()
		switch {
		case err == nil && p.size == sizeOf(s):
			v.txn.For(s.ID)
			return nil
		case err == nil:
			v.t.away(v.txn, v.room, p.size, nil)
		}
	}
	v.txn, v.room, err = v.t.make(s)
	return err
}

// makeCopy gives the step a copy of its own, where this host mounts no overlay.
// The copy is in the room, so what bounds that bounds what is added to the copy.
// The engine opens it by its path and follows no link, which a room on a file
// system of its own has no path for.
func (v *view) makeCopy(ctx context.Context, s PlanStep) error {
	whole, err := disk.Of(ctx, v.t.bottom)
	if err != nil {
		return fmt.Errorf("measure the workspace: %w", err)
	}
	o := v.t.roomOptions(s, v.txn)
	v.whole = whole
	o.Bytes += whole.Bytes
	o.Inodes += whole.Inodes
	o.Folders = true
	if v.room, err = disk.Open(o); err != nil {
		return err
	}
	res, err := clone.Tree(ctx, v.t.bottom, v.room.Upper(), clone.Options{})
	if err != nil {
		return fmt.Errorf("copy the workspace for the step: %w", err)
	}
	v.absent = res.Absent
	if err := v.mask.Apply(v.room.Upper()); err != nil {
		return fmt.Errorf("keep secrets out of the step's copy: %w", err)
	}
	if v.over != nil {
		if err := v.replay(ctx); err != nil {
			return fmt.Errorf("bring what the setup wrote into the step's copy: %w", err)
		}
	}
	if v.base, err = v.room.Used(); err != nil {
		return fmt.Errorf("measure the step's copy of the workspace: %w", err)
	}
	return nil
}

// replay does in the step's copy what its setup did in another.
func (v *view) replay(ctx context.Context) error {
	store, err := commit.Open(v.room.Named(), commit.Options{At: v.room.Upper()})
	if err != nil {
		return err
	}
	txn, err := store.New(v.id)
	if err == nil {
		txn.Keep = true // other steps need it too
		_, err = txn.Commit(ctx, v.over.changes, v.over.held)
	}
	return errors.Join(err, store.Close())
}

// transactions are those of the folder that changes are brought into.
func (t *Tree) transactions() *commit.Store {
	if t.shadow != nil {
		return t.shadow
	}
	return t.store
}

// makeShadow makes a copy that stands for a workspace which must stay as it is.
func (t *Tree) makeShadow(ctx context.Context) error {
	txn, err := t.store.New("shadow") // goes with the run
	if err != nil {
		return err
	}
	if _, err := clone.Tree(ctx, t.workspace, txn.UpperAt(), clone.Options{}); err != nil {
		return fmt.Errorf("copy the workspace, which is to stay as it is: %w", err)
	}
	if t.shadow, err = commit.Open(txn.Upper(), commit.Options{At: txn.UpperAt()}); err != nil {
		return err
	}
	t.bottom = txn.Upper()
	return nil
}

// show tells a box's spec what its workspace is.
func (v *view) show(b *box.Spec) {
	b.FileBytes, b.Protect = v.room.FileSize(), v.protect
	if v.why != "" {
		b.Workspace = v.room.Named()
		return
	}
	o := &box.Overlay{Base: v.room.Base(), UID: v.t.owner.uid, GID: v.t.owner.gid}
	if o.Base == "" {
		o.Base, o.Tree = filepath.Dir(v.room.Upper()), v.room.Tree
	}
	for _, l := range v.stack {
		o.Lower = append(o.Lower, l.Dir)
	}
	b.Overlay = o
}

// how says what held the step's writes, for the report.
func (v *view) how() string {
	if v.why != "" {
		return "copy"
	}
	return "overlay"
}

// untouched says whether the step wrote nothing at all, so that there is nothing
// to be lost either.
func (v *view) untouched() bool {
	dir, err := os.Open(v.room.Upper())
	if err != nil {
		return false
	}
	defer dir.Close()
	_, err = dir.ReadDir(1)
	return errors.Is(err, io.EOF)
}

// used says what the step wrote against what it may. Nobody of it is alive. Of a
// run that was cancelled nothing is kept any more, and to have it all written to
// the disk first can take longer than a cancel has.
func (v *view) used(ctx context.Context) (box.DiskUse, error) {
	if ctx.Err() == nil && !v.untouched() {
		if err := v.room.Settle(); err != nil {
			return box.DiskUse{}, fmt.Errorf("read back what the step wrote: %w", err)
		}
	}
	u, err := v.room.Used()
	if err != nil {
		return box.DiskUse{}, fmt.Errorf("measure what the step wrote: %w", err)
	}
	full := u.Full
	select {
	case <-v.full:
		full = true
	default:
	}
	bytes, inodes := v.room.Bound()
	over := u.Over(bytes, inodes)
	switch {
	case !full && !over:
		u = v.stepsOwn(u)
	case v.why == "" && v.room.By() != disk.Sampler: // it is a little larger than its bound
		u.Bytes, u.Inodes = min(u.Bytes, bytes), min(u.Inodes, inodes)
	}
	return box.DiskUse{
		By: v.room.By(), BoundBytes: bytes - v.whole.Bytes, UsedBytes: u.Bytes - v.base.Bytes,
		BoundInodes: inodes - v.whole.Inodes, UsedInodes: u.Inodes - v.base.Inodes,
		Over: over, Full: full,
	}, nil
}

// overrun says whether the step wrote more than it may, while it goes on.
func (v *view) overrun() (box.DiskUse, error) {
	u, err := v.room.Used()
	if err != nil {
		return box.DiskUse{}, fmt.Errorf("measure what the step wrote: %w", err)
	}
	bytes, inodes := v.room.Bound()
	full := u.Full
	select {
	case <-v.full:
		full = true
	default:
	}
	over := u.Over(bytes, inodes)
	if !full && !over {
		return box.DiskUse{}, nil
	}
	if v.why == "" && v.room.By() != disk.Sampler {
		u.Bytes, u.Inodes = min(u.Bytes, bytes), min(u.Inodes, inodes)
	}
	return box.DiskUse{
		By: v.room.By(), BoundBytes: bytes - v.whole.Bytes, UsedBytes: u.Bytes - v.base.Bytes,
		BoundInodes: inodes - v.whole.Inodes, UsedInodes: u.Inodes - v.base.Inodes, Over: over, Full: full,
	}, nil
}

// maxCounted is how many files a step may have written for them to be counted one
// by one. What the overlay keeps beside them is nothing next to more.
const maxCounted = 4096

// stepsOwn leaves out of what a file system has in use what the overlay and the
// file system itself made of it: a step that wrote nothing has written nothing.
func (v *view) stepsOwn(u disk.Usage) disk.Usage {
	if v.why != "" || v.room.By() == disk.Sampler || u.Inodes > maxCounted {
		return u
	}
	own, err := disk.Of(context.Background(), v.room.Upper())
	if err != nil || own.AtLeast {
		return u
	}
	return disk.Usage{Bytes: min(own.Bytes, u.Bytes), Inodes: min(own.Inodes, u.Inodes), Full: u.Full}
}

// read says what the step changed. Nobody of it is alive.
func (v *view) read(ctx context.Context) (*delta.Delta, error) {
	if v.why != "" {
		return delta.Compare(ctx, v.stack, v.room.Upper(), delta.Options{})
	}
	return delta.Read(ctx, v.stack, v.room.Upper(), delta.Options{})
}

// errConflict: another step changed the same meanwhile.
var errConflict = errors.New("conflict")

// keep makes a step's changes those of the run. Several steps that were open at
// once must not have changed the same: what the second one did was done to a
// state that is no more, and neither is silently lost.
//
// What cannot be brought into the workspace later is told by failures. The view
// is closed in any case.
func (v *view) keep(ctx context.Context, changes []workspace.Change) error {
	t := v.t
	t.mu.Lock()
	defer t.mu.Unlock()
	// However this view ends, it may have been the last that what others wrote
	// waited for; and that is not lost with this step's, or with a cancel.
	defer t.flush(context.WithoutCancel(ctx))
	for _, l := range t.recent {
		if l.seq <= v.seq {
			continue
		}
		if path := collide(l.changes, changes); path != "" {
			v.close()
			return fmt.Errorf("%w: %q was changed by this step and, meanwhile, by %s; let one need the other", errConflict, path, l.by(path))
		}
	}
	if err := ctx.Err(); err != nil {
		v.close()
		return err
	}
	t.seq++
	l := &layer{seq: t.seq, id: v.id, changes: changes, after: v.room.Named(), held: v.room.Upper(), txn: v.txn, saw: v.seq}
	t.recent = append(t.recent, l)
	if v.why != "" || t.last(v) && len(t.kept) == 0 {
		// Nobody sees the workspace but through a copy, or nobody at all.
		err := t.commit(ctx, l)
		if err != nil && t.half == nil {
			// It did not happen, so nothing can collide with it.
			t.recent = slices.DeleteFunc(t.recent, func(o *layer) bool { return o == l })
		}
		v.close()
		return err
	}
	if err := v.settle(ctx, l); err != nil {
		v.size = roomSize{} // some of it may be in the transaction's folders
		v.close()
		return err
	}
	l.txn.Keep, l.room = true, v.room
	t.kept = append([]*layer{l}, t.kept...)
	v.leave()
	return nil
}

// last says whether no other view is open.
func (t *Tree) last(v *view) bool {
	_, in := t.open[v]
	return len(t.open) == 0 || in && len(t.open) == 1
}

// settle moves what the step wrote to where it can lie below other steps.
func (v *view) settle(ctx context.Context, l *layer) error {
	if v.room.Base() != "" {
		return nil
	}
	if _, err := clone.Tree(ctx, l.held, v.txn.UpperAt(), clone.Options{Marks: true}); err != nil {
		return fmt.Errorf("keep what step %s wrote: %w", l.id, err)
	}
	l.after, l.held = v.txn.Upper(), v.txn.UpperAt()
	v.t.away(nil, v.room, v.size, nil)
	v.room = nil
	return nil
}

func (t *Tree) commit(ctx context.Context, l *layer) error {
	if _, err := l.txn.Commit(ctx, l.changes, l.held); err != nil {
		if errors.Is(err, commit.ErrIncomplete) {
			t.half = err
		}
		return fmt.Errorf("bring the changes of step %s into the workspace: %w", l.id, err)
	}
	// They are there now, whatever becomes of the mask or of the run. It is the
	// next step that must not see what a mask that could not be made would hide: a
	// step can fill the disk that the mask is written to.
	renew := t.renewMask
	if l.secret {
		renew = t.newMask
	}
	if err := renew(context.WithoutCancel(ctx)); err != nil {
		t.bare = err
	}
	return nil
}

// newMask looks at all of the workspace, as when it was opened: what the host wrote
// since then can be as secret as what was there.
func (t *Tree) newMask(ctx context.Context) (err error) {
	if t.mask, err = scrub.Find(ctx, t.bottom, scrub.Options{Home: t.home}); err != nil {
		return fmt.Errorf("find the secrets in the workspace: %w", err)
	}
	return t.writeMask()
}

// renewMask looks again at what is hidden, once the workspace has changed: a
// folder that is gone must not come back through the layer that hides something
// in it, and one whose mode is another must show it.
func (t *Tree) renewMask(ctx context.Context) error {
	if t.mask.Empty() {
		return nil
	}
	now, err := t.mask.Refresh(ctx, t.bottom, scrub.Options{Home: t.home})
	if err != nil {
		return fmt.Errorf("find the secrets in the workspace: %w", err)
	}
	if now.Same(t.mask) {
		return nil
	}
	t.mask = now
	return t.writeMask()
}

// writeMask makes the layer that hides what is secret. It goes with the run.
func (t *Tree) writeMask() error {
	t.maskDir = ""
	if t.mask.Empty() {
		return nil
	}
	txn, err := t.store.New("mask")
	if err != nil {
		return err
	}
	t.maskDir = txn.Upper()
	return t.mask.Write(txn.UpperAt(), t.owner.uid, t.owner.gid)
}

// flush brings into the workspace what is kept, once nobody sees it below a
// layer of its own: an overlay whose layers change shows anything. t.mu is held.
func (t *Tree) flush(ctx context.Context) {
	if len(t.open) > 0 {
		return
	}
	var failed []*layer
	for _, l := range slices.Backward(t.kept) {
		err := t.stands(l, failed)
		if err == nil {
			l.txn.Keep = false
			err = t.commit(ctx, l)
		}
		switch {
		case err == nil:
		case l.host:
			for _, id := range l.calls {
				t.lost = append(t.lost, fmt.Errorf("%s: what it wrote could not be brought into the workspace: %w", id, err))
			}
			failed = append(failed, l)
		default:
			t.broken[l.id] = &unkept{err, fewPaths(l.changes)}
			failed = append(failed, l)
		}
		t.away(nil, l.room, roomSize{}, nil)
	}
	t.kept = nil
}

// unkept is why what a step had kept is not in the workspace, and what that is.
type unkept struct {
	error
	paths string
}

func (e *unkept) Unwrap() error { return e.error }

// pathsOf names some of what was changed.
func fewPaths(changes []workspace.Change) string {
	var names []string
	for _, c := range changes {
		if c.Type == "dir" && c.Change != workspace.Deleted {
			continue
		}
		if len(names) == 5 {
			names = append(names, "more")
			break
		}
		names = append(names, inert(c.Path))
	}
	return strings.Join(names, ", ")
}

// stands says why a layer was made for a state that is not there, since one below it
// could not be brought into the workspace. Of what the host wrote, that is what saw
// it, or lies in it; of a step, whatever came later.
func (t *Tree) stands(l *layer, failed []*layer) error {
	if t.half != nil && len(failed) > 0 {
		return errors.New("what was changed before could be brought into the workspace by half")
	}
	for _, f := range failed {
		if f.host && (l.host || l.saw < f.seq) && collide(f.changes, l.changes) == "" {
			continue
		}
		if f.host {
			return fmt.Errorf("what %s wrote before could not be brought into the workspace", f.by(""))
		}
		return errors.New("what an earlier step changed could not be brought into the workspace")
	}
	return nil
}

// by is who did to a path what a layer has.
func (l *layer) by(path string) string {
	for _, id := range l.calls {
		if _, of, _ := strings.Cut(id, " "); of == inert(path) {
			return id
		}
	}
	return l.id
}

// lose has Lost tell of a step whose result was given away before.
func (t *Tree) lose(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lostOf(err)
}

func (t *Tree) lostOf(err error) {
	if u := (*unkept)(nil); errors.As(err, &u) {
		err = fmt.Errorf("a call that had ended wrote %s: %w", u.paths, u.error)
	}
	t.lost = append(t.lost, err)
}

// Lost are the changes of the host's that Change kept, and those of calls that were
// over, that could not be brought into the workspace later, each told once. last:
// nothing runs any more that will look for failures of its own.
func (t *Tree) Lost(last bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if last {
		for _, id := range slices.Sorted(maps.Keys(t.broken)) {
			t.lostOf(t.broken[id])
		}
		t.broken = map[string]error{}
	}
	lost := t.lost
	t.lost = nil
	return errors.Join(lost...)
}

// failures are the steps whose kept changes could not be brought into the
// workspace, each told once.
func (t *Tree) failures() map[string]error {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.broken
	t.broken = map[string]error{}
	return b
}

// Probe shows an empty box the workspace as steps will see it, to find out
// whether this host can do that. What it returns takes everything away again.
func (t *Tree) Probe(ctx context.Context, b *box.Spec) (end func(), err error) {
	v, err := t.view(ctx, PlanStep{ID: "probe", DiskMb: 4}, nil)
	if err != nil {
		return nil, err
	}
	v.show(b)
	return v.drop, nil
}

// UseCopies gives every step a copy of its own, since this host mounts no
// overlay; why says so.
func (t *Tree) UseCopies(why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.copies == "" {
		t.copies = why
	}
}

// Copies is why steps get a copy; "" where they get an overlay.
func (t *Tree) Copies() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.copies
}

// full says whether so much is kept that no further step should be begun before
// it is brought into the workspace.
func (t *Tree) full() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.kept) >= maxKept
}

// maxKept is how many layers may lie below a step's own before no other is begun
// beside it. mostKept is past which there is no other at all, since a box can be
// given no more, and maxHostKept past which the host adds none.
const (
	maxKept     = 200
	mostKept    = 230
	maxHostKept = 128
)

// errKept: overlayfs and the way to it take no more layers.
var errKept = errors.New("too much is kept that is not yet in the workspace, because something runs that began before it: close the kernel, or wait for the call, that has been open for longest")

// drop forgets what the step wrote.
func (v *view) drop() {
	v.t.mu.Lock()
	defer v.t.mu.Unlock()
	v.close()
	v.t.flush(context.Background())
}

// close lets go of everything of a view. t.mu is held.
func (v *view) close() {
	v.leave()
	v.t.away(v.txn, v.room, v.size, nil)
	v.txn, v.room = nil, nil
}

// away takes away what a step wrote to, while other things go on. What cannot be
// taken away is told by Close: it is ours, and no part of the workspace.
func (t *Tree) away(txn *commit.Txn, room *disk.Room, size roomSize, err error) {
	t.closing.Add(1)
	go func() {
		defer t.closing.Done()
		txn, room := t.reuse(txn, room, size)
		errs := []error{err, closeRoom(room)}
		if txn != nil {
			errs = append(errs, txn.Drop())
		}
		if err := errors.Join(errs...); err != nil {
			t.left.Lock()
			defer t.left.Unlock()
			t.leftover = append(t.leftover, err)
		}
	}()
}

// reuse keeps what a step's view was made of for a step that wants the same, and
// gives back what is to be taken away. A size of nothing is never wanted again.
func (t *Tree) reuse(txn *commit.Txn, room *disk.Room, size roomSize) (*commit.Txn, *disk.Room) {
	t.left.Lock()
	defer t.left.Unlock()
	list, known := t.unused[size]
	if size == (roomSize{}) || len(list) >= maxUnused || !known && len(t.unused) >= maxSizes || room == nil || !room.Renew() {
		return txn, room
	}
	p := ready{room: room}
	if txn != nil && txn.Unused() {
		p.txn, txn = txn, nil
	}
	t.unused[size] = append(list, p)
	return txn, nil
}

// maxUnused is how many rooms of a size are kept: one is in use, one is made for
// the step to come, and one is being emptied. maxSizes is of how many sizes.
const (
	maxUnused = 3
	maxSizes  = 4
)

// leave takes the view off the list of open ones. t.mu is held.
func (v *view) leave() {
	t := v.t
	delete(t.open, v)
	oldest := t.seq
	for o := range t.open {
		oldest = min(oldest, o.seq)
	}
	t.recent = slices.DeleteFunc(t.recent, func(l *layer) bool { return l.seq <= oldest })
}
