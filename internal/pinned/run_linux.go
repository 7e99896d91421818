package pinned

import (
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// afterEnd is how long a program's output may stay open after its end.
const afterEnd = time.Second

// Run runs a program on the host that ends with us, even if we are killed, and that
// a cancel ends together with what it has started. Whatever that is then holds its
// output, nobody waits for.
func Run(cmd *exec.Cmd) error {
	// The kernel ends it with the thread that started it, and the threads of this
	// program come and go: this one stays.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = afterEnd
	return cmd.Run()
}
