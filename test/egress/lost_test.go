package egress_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The proxy's sockets live in the box's network and are held by the program
// alone. Root outside can break one, as a bug in the program would.
func TestAStepThatLosesItsWayOutHasNoNetworkAndTheFault(t *testing.T) {
	n := newInternet(t)
	eachEngine(t, func(t *testing.T, engine string) {
		for _, c := range []struct{ name, allow, at, ask string }{
			{"the proxy", "origin.test", "127.0.0.1:3128", "curl -fsS -m 5 http://origin.test/"},
			{"the listener of a tcp:// rule", "tcp://origin.test:80", "127.64.0.1:80", "env -u http_proxy curl -fsS -m 5 http://origin.test/"},
		} {
			r := n.run(t, engine, fmt.Sprintf(`
steps:
- id: loses
  egressAllow: ['%[1]s']
  mounts: {TELL: /tell}
  run: |
    %[2]s
    touch /tell/begun
    until [ -e /tell/go ]; do sleep 0.02; done
    if %[2]s; then exit 8; fi
    echo alone
- {id: next, egressAllow: ['%[1]s'], run: '%[2]s'}
`, c.allow, c.ask), func(tell string) {
				await(t, filepath.Join(tell, "begun"))
				if err := breakListener(c.at); err != nil {
					t.Errorf("%s: %v", c.name, err)
				}
				time.Sleep(100 * time.Millisecond)
				touch(t, filepath.Join(tell, "go"))
			})
			r.exits(1)
			st := r.step("loses")
			if st.Fault == nil || st.Fault.Type != "egress_lost" || st.Status != "failed" || st.ExitCode == nil || *st.ExitCode != 0 {
				r.errorf("%s: %s, fault %+v, exit code %v", c.name, st.Reason, st.Fault, st.ExitCode)
			}
			if got := r.stdout("loses"); !strings.HasSuffix(got, "alone") {
				r.errorf("%s: the step says %q", c.name, got)
			}
			if st := r.step("next"); st.Status != "passed" {
				r.errorf("%s: the next step is %s: %s", c.name, st.Status, st.Reason)
			}
			if got := n.good.requests(); len(got) != 2 {
				r.errorf("%s: the origin was asked %v, want once by each step", c.name, got)
			}
		}
	})
}

func await(t *testing.T, file string) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(file); err == nil {
			return
		}
		if time.Now().After(end) {
			t.Errorf("%s did not appear", file)
			return
		}
	}
}

func touch(t *testing.T, file string) {
	t.Helper()
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Error(err)
	}
}

// breakListener finds the program's listening socket of an address and shuts it
// down, as nothing in a box can.
func breakListener(at string) error {
	mine, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, exe := range mine {
		if to, err := os.Readlink(exe); err != nil || to != program {
			continue
		}
		pid, err := strconv.Atoi(strings.Split(exe, "/")[2])
		if err != nil {
			return err
		}
		if done, err := shutListener(pid, at); done || err != nil {
			return err
		}
	}
	return errors.New("no process of the program listens on " + at)
}

func shutListener(pid int, at string) (bool, error) {
	handle, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return false, err
	}
	defer unix.Close(handle)
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return false, err
	}
	done := false
	for _, e := range fds {
		n, err := strconv.Atoi(e.Name())
		if err != nil {
			return false, err
		}
		fd, err := unix.PidfdGetfd(handle, n, 0)
		if err != nil {
			continue // it was closed meanwhile
		}
		listens, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
		if err == nil && listens == 1 {
			if sa, err := unix.Getsockname(fd); err == nil {
				if in, ok := sa.(*unix.SockaddrInet4); ok && net.JoinHostPort(net.IP(in.Addr[:]).String(), strconv.Itoa(in.Port)) == at {
					done = unix.Shutdown(fd, unix.SHUT_RDWR) == nil || done
				}
			}
		}
		unix.Close(fd)
	}
	return done, nil
}
