package boxinit

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// maxFrame bounds one message: argv and env together are bounded by the
	// kernel at a quarter of the stack limit, 2 MiB.
	maxFrame = 16 << 20
	// maxFDs bounds the descriptors that come with one message.
	maxFDs = 250 // the kernel takes 253
)

// Message is one frame. Exactly one field is set.
type Message struct {
	Setup    json.RawMessage `json:"setup,omitempty"` // an engine's own
	Prepare  *Prepare        `json:"prepare,omitempty"`
	Ready    *Ready          `json:"ready,omitempty"`
	Start    *Start          `json:"start,omitempty"`
	Filtered *Filtered       `json:"filtered,omitempty"`
	Started  *Started        `json:"started,omitempty"`
	Failed   *Failed         `json:"failed,omitempty"`
	Exited   *Exited         `json:"exited,omitempty"`
	Counted  *Counted        `json:"counted,omitempty"` // while the step runs
}

// Prepare asks for all that must be done before the step can be started: the
// proxy's socket, and that capabilities are given up. Keep lists those, by
// number, that the step keeps over its own user namespace; usually none.
// CgroupNS roots the step's view of control groups at its own, where the first
// process may do so.
type Prepare struct {
	ProxyPort int `json:"proxyPort"` // 0: none
	// Listen are addresses with ports to listen on besides the proxy's. Their
	// sockets come after the proxy's, in this order.
	Listen []Addr `json:"listen,omitempty"`
	// Addrs are addresses that loopback must have first.
	Addrs    []Addr `json:"addrs,omitempty"`
	Keep     []int  `json:"keep,omitempty"`
	CgroupNS bool   `json:"cgroupNS,omitempty"`
	// Tmpfs are file systems in memory: Exited says which of them were full.
	Tmpfs []string `json:"tmpfs,omitempty"`
	// Relay: sockets cannot be handed out; their connections are carried.
	Relay bool   `json:"relay,omitempty"`
	Apart *Apart `json:"apart,omitempty"`
}

// Addr is an address with a port, in a form that costs the first process nothing
// to know (see init): IP has 4 bytes or 16.
type Addr struct {
	IP   []byte `json:"ip"`
	Port uint16 `json:"port,omitempty"`
}

// ip4 gives the address as one of IPv4, also where it is written as one of IPv6.
func (a Addr) ip4() (ip [4]byte, ok bool) {
	b := a.IP
	if mapped := []byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff}; len(b) == 16 && bytes.HasPrefix(b, mapped) {
		b = b[12:]
	}
	return ip, len(b) == 4 && copy(ip[:], b) == 4
}

func (a Addr) String() string {
	var parts []string
	host, between := "", "."
	if ip, ok := a.ip4(); ok {
		for _, b := range ip {
			parts = append(parts, strconv.Itoa(int(b)))
		}
	} else {
		between = ":"
		for i := 0; i+1 < len(a.IP); i += 2 {
			parts = append(parts, strconv.FormatUint(uint64(binary.BigEndian.Uint16(a.IP[i:])), 16))
		}
	}
	host = strings.Join(parts, between)
	switch {
	case a.Port == 0:
		return host
	case between == ":":
		host = "[" + host + "]"
	}
	return host + ":" + strconv.Itoa(int(a.Port))
}

// Ready says that nothing is left to do but to start the step.
type Ready struct{}

// Start is the step's command.
type Start struct {
	Argv    []string `json:"argv"`
	Env     []string `json:"env"`
	Workdir string   `json:"workdir"`
	Filter  []byte   `json:"filter,omitempty"`
	// Guard is a filter that reports nothing, for a box whose engine filters by
	// itself and does not protect the first process.
	Guard []byte `json:"guard,omitempty"`
	// SetID is a filter that refuses set-id bits, for a box that can write to a folder
	// of the host.
	SetID []byte `json:"setID,omitempty"`
	// FileBytes is how large a file the step may make; 0: no bound.
	FileBytes int64 `json:"fileBytes,omitempty"`
	// AppArmor is a profile that the command enters; CPUs are those it is started
	// on, none for all.
	AppArmor string `json:"appArmor,omitempty"`
	CPUs     []int  `json:"cpus,omitempty"`
}

// Filtered comes with the seccomp listener.
type Filtered struct{}

// Started says that the step's command runs.
type Started struct {
	Pid int `json:"pid"` // in the box
}

// Failed says why a box could not be built or a command not be started.
type Failed struct {
	Op   string `json:"op"` // "exec", "interpreter", "workdir" or what was tried
	Name string `json:"name"`
	// Named is the key of the step at fault, such as "mounts"; empty where it is
	// not the step's doing, or Op says so by itself.
	Named string `json:"named,omitempty"`
	Errno int    `json:"errno"`
	Why   string `json:"why"`
}

// OverlayFailed is the Op of a Failed for an overlay that this host does not let
// us mount. Nothing has run: the step can be given a copy instead.
const OverlayFailed = "overlay"

func (f *Failed) Error() string { return fmt.Sprintf("%s %s: %s", f.Op, f.Name, f.Why) }

// Unwrap gives the kernel's own word, if it was the kernel that refused.
func (f *Failed) Unwrap() error {
	if f.Errno == 0 {
		return nil
	}
	return syscall.Errno(f.Errno)
}

// Exited is the wait status of the step's own process, and what it left full.
type Exited struct {
	Status uint32 `json:"status"`
	Full   []Full `json:"full,omitempty"`
	// Counted is set where the first process counts.
	Counted *Counted `json:"counted,omitempty"`
}

// Full is a file system in memory that had no room left when the step's own
// process had ended.
type Full struct {
	Target string `json:"target"`
	// Files: it is names that it has no room for, not bytes.
	Files bool `json:"files,omitempty"`
}

// Send writes one message with descriptors. It keeps them open.
func Send(fd int, m Message, fds ...int) error {
	body, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("boxinit: encode message: %w", err)
	}
	if len(body) > maxFrame {
		return fmt.Errorf("boxinit: message of %d bytes is over %d", len(body), maxFrame)
	}
	head := make([]byte, 4)
	binary.BigEndian.PutUint32(head, uint32(len(body)))
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	// The descriptors ride on the head, so that they arrive with its first byte.
	for {
		n, err := unix.SendmsgN(fd, head, oob, nil, unix.MSG_NOSIGNAL)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("send to the box: %w", err)
		}
		if n != len(head) {
			return errors.New("send to the box: short write of a frame's head")
		}
		break
	}
	for len(body) > 0 {
		n, err := unix.SendmsgN(fd, body, nil, nil, unix.MSG_NOSIGNAL)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("send to the box: %w", err)
		}
		body = body[n:]
	}
	return nil
}

// Ask asks a first process that lives apart, and whose step runs, to count now.
func Ask(fd int) error {
	for {
		n, err := unix.SendmsgN(fd, []byte{1}, nil, nil, unix.MSG_NOSIGNAL)
		switch {
		case err == unix.EINTR:
			continue
		case err == nil && n != 1:
			err = io.ErrShortWrite
		}
		if err != nil {
			return fmt.Errorf("send to the box: %w", err)
		}
		return nil
	}
}

// Receive reads one message. Descriptors that come with it are close-on-exec
// and belong to the caller. io.EOF means that the other side is gone.
func Receive(fd int) (Message, []int, error) {
	var m Message
	head := make([]byte, 4)
	oob := make([]byte, unix.CmsgSpace(maxFDs*4))
	var fds []int
	got := 0
	for got < len(head) {
		n, oobn, flags, _, err := unix.Recvmsg(fd, head[got:], oob, unix.MSG_CMSG_CLOEXEC)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			closeAll(fds)
			return m, nil, fmt.Errorf("receive from the box: %w", err)
		}
		if n == 0 {
			closeAll(fds)
			return m, nil, io.EOF
		}
		more, err := rights(oob[:oobn])
		fds = append(fds, more...)
		if err == nil && flags&unix.MSG_CTRUNC != 0 {
			err = errors.New("too many descriptors")
		}
		if err != nil {
			closeAll(fds)
			return m, nil, fmt.Errorf("receive from the box: %w", err)
		}
		got += n
	}
	size := binary.BigEndian.Uint32(head)
	if size > maxFrame {
		closeAll(fds)
		return m, nil, fmt.Errorf("receive from the box: frame of %d bytes is over %d", size, maxFrame)
	}
	body := make([]byte, size)
	for got := 0; got < len(body); {
		n, err := unix.Read(fd, body[got:])
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			closeAll(fds)
			if err == nil {
				err = io.ErrUnexpectedEOF
			}
			return m, nil, fmt.Errorf("receive from the box: %w", err)
		}
		got += n
	}
	if err := json.Unmarshal(body, &m); err != nil {
		closeAll(fds)
		return m, nil, fmt.Errorf("receive from the box: %w", err)
	}
	return m, fds, nil
}

func rights(oob []byte) ([]int, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	var fds []int
	for i := range msgs {
		if msgs[i].Header.Level != unix.SOL_SOCKET || msgs[i].Header.Type != unix.SCM_RIGHTS {
			continue
		}
		more, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			return fds, err
		}
		fds = append(fds, more...)
	}
	return fds, nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// Fail turns an error into the message that reports it.
func Fail(op, name string, err error) Message {
	f := &Failed{Op: op, Name: name, Why: err.Error()}
	var en syscall.Errno
	if errors.As(err, &en) {
		f.Errno = int(en)
		f.Why = en.Error()
	}
	return Message{Failed: f}
}

// Pair makes a connected pair of stream sockets, both close-on-exec.
func Pair() (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make control socket: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "control"), os.NewFile(uintptr(fds[1]), "control"), nil
}
