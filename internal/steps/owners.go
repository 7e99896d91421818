package steps

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/untrusted-steps/untrusted-steps/internal/gha"
)

// maxOwned bounds how many entries of the workspace are looked at for whose they
// are: it is for a hint, and a step says itself what it cannot write.
const maxOwned = 10_000

// ofOthers says that files right in the workspace belong to another user or group
// than its folder, whom steps work as: they can be read and not changed. A
// checkout by root of a job container does that, in a folder that the runner has
// made as its own user. "" if there is none.
func ofOthers(dir string, o owner) string {
	f, err := os.Open(dir)
	if err != nil {
		return "" // whoever lists it next says so
	}
	defer f.Close()
	list, err := f.ReadDir(maxOwned)
	if err != nil && err != io.EOF {
		return ""
	}
	n, first, whose := 0, "", ""
	for _, e := range list {
		st, err := os.Lstat(filepath.Join(dir, e.Name()))
		if err != nil {
			continue
		}
		sys, ok := st.Sys().(*syscall.Stat_t)
		if !ok || int(sys.Uid) == o.uid && int(sys.Gid) == o.gid {
			continue
		}
		if n++; n == 1 || e.Name() < first {
			first, whose = e.Name(), fmt.Sprintf("%d:%d", sys.Uid, sys.Gid)
		}
	}
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("steps cannot change %d of %d entries right in the workspace, which belong to others (%s to %s) than its folder (%d:%d): chown -R %d:%d %s",
		n, len(list), strconv.Quote(first), whose, o.uid, o.gid, o.uid, o.gid, gha.ShellWord(dir))
}
