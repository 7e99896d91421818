// Package limits owns the control groups that steps run in: it finds a place
// where this host lets us make them, makes one per step, writes the caps, reads
// them back, counts what the kernel did, and ends everything inside.
//
// It speaks to the kernel's folders directly. The usual library for this brings
// systemd and D-Bus clients along; what is needed here is a folder, a handful
// of files and the patience to read every one of them back.
//
// What it refuses: to believe a setting (each place is tried with a group of
// our own before it is used), to run with a cap that does not read back as
// written, and to remove a group of another run that is still alive. A host
// where nothing works is a Refusal, with the cause and the commands that help.
//
//	m, err := limits.Open(limits.Config{RunID: "4f1c9a02"})
//	g, err := m.New("build", limits.Caps{MemoryBytes: 512 << 20, Pids: 256})
//	// start a process in g.CgroupFD(), or g.Join(pid) while it waits
//	err = g.ExcludeInit() // the first process stands ready, the step does not run yet
//	// ... let the step run; watch g.OOM(ctx)
//	err = g.Kill(ctx)     // nothing of the step is alive after this
//	stats, err := g.Stats()
//	err = g.Close()
//
// Two kinds of host are served. cgroup2: as root, or as anybody in a delegated
// group or below a user's own manager (systemd-run --user --scope). A group
// with processes in it cannot have children with caps, so where the only place
// is our own group, we and what belongs to our job move into a leaf named
// LeafName first. The leaf stays when we end: our caller may sit in it by then,
// and taking the controllers away again would lift the caps of a run beside us.
// cgroup1: as root, a group in each of the hierarchies memory and pids, and in
// cpu and cpuacct where they are mounted.
//
// What a cap does not cover: the memory and processes of the box's own first
// process count as the step's memory (not as its pids, see ExcludeInit). A cap
// set further up, by a service or a container around us, still holds; when
// that one is hit first, older kernels count it in our group as ours.
package limits
