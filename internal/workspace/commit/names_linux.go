package commit

import (
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Names in a store. A run has a lock and its transactions, and a transaction
// what follows.
const (
	runPrefix   = "run-"
	txnPrefix   = "txn-"
	upperName   = "upper"
	workName    = "work"
	stageName   = "stage"
	journalName = "journal"
	openedName  = "opened"
	tempSuffix  = ".tmp"
)

// list is the sorted names in a folder of ours that begin with prefix.
func list(dir int, prefix string) ([]string, error) {
	fd, err := openAt(dir, ".", listFlags, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	buf := make([]byte, 16<<10)
	var out, names []string
	for {
		var n int
		err := again(func() (err error) {
			n, err = unix.Getdents(fd, buf)
			return err
		})
		if err != nil {
			return nil, err
		}
		if n == 0 {
			slices.Sort(out)
			return out, nil
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names[:0])
		for _, name := range names {
			if strings.HasPrefix(name, prefix) {
				out = append(out, name)
			}
		}
	}
}
