package host

import (
	"context"
	"fmt"
	"path/filepath"
	"syscall"

	"github.com/untrusted-steps/untrusted-steps/internal/gha"
)

// folderTrial is where what steps write would be kept, and what works there.
type folderTrial struct {
	dir string
	Folder
	passed []string // folders that would not do, with why
}

// keptIn finds the folder, the first that can be written.
func (x *examination) keptIn(ctx context.Context) *folderTrial {
	if x.kept != nil {
		return x.kept
	}
	t := &folderTrial{}
	for _, dir := range x.o.Places {
		if t.dir, t.Folder = dir, x.m.Folder(ctx, dir); t.Write == nil {
			break
		}
		t.passed = append(t.passed, fmt.Sprintf("%s: %v", dir, t.Write))
	}
	x.kept = t
	return t
}

// onDisk is what helps where a file system cannot do what is needed.
func onDisk(x *examination) []string {
	if x.place.contained() {
		return []string{
			"# work on a volume, not in the container's own layers; with Docker:",
			"docker run -v /work ... untrusted-steps run --workspace /work/tree FILE",
		}
	}
	return []string{"# work on a disk of this machine:", "untrusted-steps run --workspace DIR FILE"}
}

// untried is what a check found that could not be made. It is not well then, and
// what is wrong is another's.
func untried(why string) Finding {
	return Finding{Status: Warn, Found: "not tried: " + why, Costs: "nobody knows", Verify: "untrusted-steps doctor"}
}

// workspaceFolder writes, renames and marks files where the layers of steps go.
func workspaceFolder(ctx context.Context, x *examination) Finding {
	t := x.keptIn(ctx)
	f := Finding{Status: OK, Verify: "untrusted-steps doctor --workspace DIR"}
	switch {
	case t.dir == "":
		f.Status, f.Found = Fail, "there is no folder to keep in what steps write"
	case t.Write != nil:
		f.Status = Fail
		f.Found = "what steps write can be kept nowhere: " + list(t.passed)
		f.Costs = "every run: the workspace could not be kept from what steps do"
		f.Fix = []string{"# give the folder that holds the workspace to this account, or set HOME to one that it can write:",
			fmt.Sprintf("sudo chown %d %s", x.m.UID, gha.ShellWord(x.o.Places[0]))}
	case t.Rename != nil:
		f.Status, f.Found = Fail, fmt.Sprintf("%s (%s) puts no file in another's place: %v", t.dir, t.Type, t.Rename)
		f.Costs, f.Fix = "every run: what a step changed is brought into the workspace that way", onDisk(x)
	case remote(t.Type):
		f.Status, f.Found = Warn, fmt.Sprintf("%s is on %s, which other machines may change", t.dir, t.Type)
		f.Costs, f.Fix = "speed, and the promise that nobody else changes the workspace meanwhile", onDisk(x)
	default:
		f.Found = fmt.Sprintf("what steps write is kept in %s (%s)", t.dir, t.Type)
		f.Verify = ""
	}
	if f.Status == OK && len(t.passed) > 0 {
		f.Found += ", since others would not do: " + list(t.passed)
	}
	return f
}

func remote(fs string) bool { return fs == "NFS" || fs == "SMB" || fs == "9p" || fs == "FUSE" }

// idMappedMounts shows files under another id, which boxes of root need.
func idMappedMounts(ctx context.Context, x *examination) Finding {
	if !x.m.Root {
		return Finding{Status: OK, Found: "only boxes of the machine's root need them"}
	}
	t := x.keptIn(ctx)
	if t.dir == "" || t.Write != nil {
		return untried("there is no folder to try it in; see workspace")
	}
	a := x.m.Try(ctx, Trial{What: tryIDMap, Dir: t.dir})
	if a.worked() {
		return Finding{Status: OK, Found: fmt.Sprintf("files in %s (%s) were shown under another id", t.dir, t.Type)}
	}
	f := Finding{
		Status: Fail, Found: fmt.Sprintf("files in %s (%s) cannot be shown under another id: %s", t.dir, t.Type, a.why()),
		Costs: "boxes of root, whose root must own nothing of the machine", Verify: "untrusted-steps doctor --workspace DIR",
		Fix: append(onDisk(x), "# or run as a normal user, who needs no mapping"),
	}
	if op := a.first(); op != nil && op.Errno == syscall.EPERM {
		f.Found += ": this root may not mount"
		f.Fix = append(x.outside(), "# or run as a normal user, who needs no mapping")
	}
	return f
}

// overlayMounts mounts a workspace as a box does, over layers where they will be,
// and creates, deletes and replaces in it.
func overlayMounts(ctx context.Context, x *examination) Finding {
	t := x.keptIn(ctx)
	if t.dir == "" || t.Write != nil {
		return untried("there is no folder to try it in; see workspace")
	}
	if !x.tryInside(ctx).worked() {
		return untried("nothing can be mounted in a user namespace; see user-namespaces")
	}
	a := x.m.Try(ctx, Trial{What: tryOverlay, Dir: t.dir})
	if a.worked() {
		return Finding{Status: OK, Found: fmt.Sprintf("an overlay with its layers in %s (%s) was mounted in a user namespace, and written to", t.dir, t.Type)}
	}
	f := Finding{
		Status: Warn, Found: fmt.Sprintf("no overlay can have its layers in %s (%s): %s", t.dir, t.Type, a.why()),
		Costs: "each step gets a copy of the workspace, which takes time and room", Verify: "untrusted-steps doctor --workspace DIR",
		Fix: onDisk(x),
	}
	switch op := a.first(); {
	case t.Type == "overlay":
		f.Found += ": that is an overlay itself, as a container's own file system is"
	case op != nil && op.Errno == syscall.ENODEV:
		f.Found += ": this kernel has no overlay file system"
		f.Fix = []string{"sudo modprobe overlay"}
	}
	return f
}

// temporaryFolder starts a program in it.
func temporaryFolder(ctx context.Context, x *examination) Finding {
	t := x.m.Folder(ctx, x.o.Temp)
	f := Finding{Status: OK, Found: fmt.Sprintf("programs in %s (%s) can be started", x.o.Temp, t.Type)}
	switch {
	case t.Way != nil:
		f.Status, f.Found = Fail, fmt.Sprintf("others can change what root keeps in the folder for temporary files, %s: %v", x.o.Temp, t.Way)
		f.Costs, f.Fix = "every run of root's: boxes are made of what lies there", []string{"export TMPDIR=/tmp"}
		f.Verify = "namei -l " + gha.ShellWord(x.o.Temp)
	case t.Write != nil:
		f.Status, f.Found = Fail, fmt.Sprintf("nothing can be written to the folder for temporary files, %s: %v", x.o.Temp, t.Write)
		f.Costs, f.Fix = "every run", []string{"export TMPDIR=$HOME/tmp && mkdir -p $HOME/tmp"}
		f.Verify = "mktemp"
	case t.Exec != nil && t.NoExec:
		f.Status, f.Found = Warn, fmt.Sprintf("no program in %s (%s) can be started: it is mounted noexec", x.o.Temp, t.Type)
		f.Costs = "what is built there: the action builds itself in the runner's temporary folder, and so does go run. Boxes do not need it"
		f.Fix = []string{
			"export TMPDIR=$HOME/tmp && mkdir -p $HOME/tmp   # in a workflow: RUNNER_TEMP, which a runner sets from its work folder",
			"# or for everybody:", "sudo mount -o remount,exec " + gha.ShellWord(x.o.Temp),
		}
		f.Verify = "findmnt --target " + gha.ShellWord(x.o.Temp) + " --output OPTIONS"
	case t.Exec != nil:
		f.Status, f.Found = Warn, fmt.Sprintf("no program in %s could be started, though it is not mounted noexec: %v", x.o.Temp, t.Exec)
		f.Costs = "what is built there: the action builds itself in the runner's temporary folder, and so does go run. Boxes do not need it"
		f.Fix = []string{"# what confines this process (AppArmor, SELinux, fapolicyd?) forbids it; its log says which rule, or take another folder:", "export TMPDIR=$HOME/tmp && mkdir -p $HOME/tmp"}
		f.Verify = "cp /bin/true " + gha.ShellWord(x.o.Temp) + "/try && " + gha.ShellWord(x.o.Temp) + "/try"
	}
	return f
}

// diskRoom counts what one step may write against what there is.
func diskRoom(ctx context.Context, x *examination) Finding {
	t := x.keptIn(ctx)
	if t.dir == "" || t.Write != nil {
		return untried("there is no folder to measure; see workspace")
	}
	f := Finding{Status: OK, Found: fmt.Sprintf("%d MiB are free in %s", t.FreeBytes>>20, t.dir)}
	switch {
	case t.FreeBytes < x.o.Disk:
		f.Status = Warn
		f.Found = fmt.Sprintf("%d MiB are free in %s, and one step may write %d MiB unless diskMb says less", t.FreeBytes>>20, t.dir, x.o.Disk>>20)
	case t.FreeFiles < minFiles:
		f.Status = Warn
		f.Found = fmt.Sprintf("%d more files fit into %s", t.FreeFiles, t.dir)
	default:
		return f
	}
	f.Costs = "a step that writes more than there is ends in an error, or with the exit code that its program has for a full disk"
	f.Fix = []string{"# make room there, set diskMb lower, or take another disk:", "untrusted-steps run --workspace DIR FILE"}
	if x.place == Hosted {
		f.Fix = append([]string{"# toolchains that no step needs go first:", "sudo rm -rf /usr/local/lib/android /usr/share/dotnet /opt/ghc"}, f.Fix...)
	}
	f.Verify = "df -h " + gha.ShellWord(t.dir)
	if t.FreeFiles < minFiles {
		f.Verify = "df -i " + gha.ShellWord(t.dir)
	}
	return f
}

// minFiles is how many files and folders a run may want to make.
const minFiles = 4096

// homeFolder looks at what names the caller's own places.
func homeFolder(_ context.Context, x *examination) Finding {
	home, user := x.m.Getenv("HOME"), x.m.Getenv("USER")
	f := Finding{Status: OK, Found: "HOME is " + home}
	switch {
	case home == "":
		f.Status, f.Found = Warn, "HOME is not set"
	case !filepath.IsAbs(home):
		f.Status, f.Found = Warn, fmt.Sprintf("HOME is %q, which is no absolute path", home)
	}
	if f.Status != OK {
		f.Costs = "kern install has no folder to keep its binary in, and what steps write can only be kept beside the workspace"
		f.Fix = []string{`export HOME="$(getent passwd "$(id -u)" | cut -d: -f6)"`}
		f.Verify = `test -d "$HOME"`
	}
	if user == "" {
		f.Found += "; USER is empty, which nothing here needs"
	}
	return f
}

func list(items []string) string {
	out := ""
	for i, s := range items {
		if i > 0 {
			out += "; "
		}
		out += s
	}
	return out
}
