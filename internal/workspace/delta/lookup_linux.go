package delta

import "golang.org/x/sys/unix"

// openRoot opens a folder that the caller names. It may be a link itself.
func openRoot(dir string) (folder, look, error) {
	var st unix.Statx_t
	if err := again(func() error { return unix.Statx(unix.AT_FDCWD, dir, unix.AT_NO_AUTOMOUNT, statMask, &st) }); err != nil {
		return nothing, look{}, err
	}
	l := look{there: true, inode: inodeOf(&st), mode: st.Mode}
	if !l.is(unix.S_IFDIR) {
		return nothing, look{}, unix.ENOTDIR
	}
	f := folder{inode: l.inode, listable: true}
	var err error
	f.fd, err = openAt(unix.AT_FDCWD, dir, openDir&^unix.O_NOFOLLOW)
	if denied(err) {
		f.listable = false
		f.fd, err = openAt(unix.AT_FDCWD, dir, openPath&^unix.O_NOFOLLOW)
	}
	if denied(err) {
		f.fd, err = -1, nil
	}
	if err != nil {
		return nothing, look{}, err
	}
	return f, l, nil
}

// below looks a name up in what the stack has at a folder, as the kernel does:
// the first layer that has it counts, folders of the layers below it are merged
// into it, and a whiteout, an opaque folder or anything that is no folder ends
// the search.
func (w *walk) below(f *frame, n listed) (look, error) {
	var got look
	for _, part := range f.before {
		if part.fd < 0 {
			if !got.there {
				return look{there: true, denied: true, mode: n.before}, nil
			}
			got.parts = append(got.parts, nothing)
			return got, nil
		}
		l, err := lookIn(part.fd, n.name, n.before)
		if err != nil {
			return got, err
		}
		l.layer = part.layer
		marks := part.layer >= 0 && w.stack[part.layer].Marks
		switch {
		case !l.there:
			continue
		case marks && l.whiteout():
			return got, nil
		case l.denied && got.there:
			got.parts = append(got.parts, nothing)
			return got, nil
		case l.denied || !l.is(unix.S_IFDIR):
			if !got.there {
				got = l
			}
			return got, w.tally(&w.counts[0], 0, int64(len(l.target)))
		}
		sub, err := openFolder(part.fd, n.name, l)
		if err != nil {
			return got, err
		}
		if !got.there {
			got = l
		}
		got.parts = append(got.parts, sub)
		if !marks {
			continue
		}
		if sub.fd < 0 {
			return got, nil
		}
		switch yes, known, err := sub.opaque(); {
		case err != nil:
			return got, err
		case yes:
			return got, nil
		case !known:
			got.parts = append(got.parts, nothing)
			return got, nil
		}
	}
	return got, nil
}

// above looks a name up in the upper or the copy, which is ours: what the step
// closed to its owner is opened up while we are in it.
func (w *walk) above(f *frame, n listed) (look, error) {
	if f.after.fd < 0 {
		return look{}, nil
	}
	l, err := lookIn(f.after.fd, n.name, n.after)
	if err != nil || !l.there {
		return l, err
	}
	l.layer = -1
	if w.marks && l.whiteout() {
		return look{}, nil
	}
	if l.denied || !l.is(unix.S_IFDIR) {
		return l, w.tally(&w.counts[1], 0, int64(len(l.target)))
	}
	open := !w.root && l.mode&ownerAll != ownerAll
	if open {
		switch err := openUp(f.after.fd, n.name, l, ownerAll); {
		case denied(err):
			open = false
		case err != nil:
			return l, err
		}
	}
	sub, err := openFolder(f.after.fd, n.name, l)
	if err != nil {
		return l, err
	}
	if open {
		mode := uint32(l.mode & modePerm)
		sub.restore = &mode
	}
	l.parts = []folder{sub}
	if w.marks && sub.fd >= 0 {
		l.opaque, _, err = sub.opaque()
	}
	return l, err
}
