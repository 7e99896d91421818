package inside

import (
	"encoding/json"
	"fmt"
)

// Arg is the first argument that makes this program the one in a probe box.
const Arg = "untrusted-steps-probe-box"

// WordVariable is the environment variable with the word to say to whom the box
// gets to.
const WordVariable = "UNTRUSTED_STEPS_PROBE_WORD"

// Refused is the exit code of a box whose kernel answers a forbidden call with an
// error. Elsewhere that call is the end of its caller.
const Refused = 5

// Ask is what to try.
type Ask struct {
	// Proxy is where the way out is found; empty if there is none.
	Proxy string `json:"proxy,omitempty"`
	// Get is asked of the proxy and may be: a host name, port 80.
	Get string `json:"get,omitempty"`
	// Refused are host:port that the proxy is asked to connect to.
	Refused []string `json:"refused,omitempty"`
	// Dial are host:port to connect to without it; Packets are addresses to send a
	// datagram to.
	Dial    []string `json:"dial,omitempty"`
	Packets []string `json:"packets,omitempty"`
	// Names are to be looked up.
	Names []string `json:"names,omitempty"`
	// Abstract is the name of a socket in the host's abstract name space.
	Abstract string `json:"abstract,omitempty"`
	// Files are paths of the host.
	Files []string `json:"files,omitempty"`
	// Write are folders to make a file in.
	Write []string `json:"write,omitempty"`
	// Tunnel is host:port that the proxy is asked to connect to, and As the server
	// that is then asked for there, in the first words of TLS.
	Tunnel string `json:"tunnel,omitempty"`
	As     string `json:"as,omitempty"`
	// Forks is how many processes to start at most.
	Forks int `json:"forks,omitempty"`
	// Escape: at last, make a namespace. That is the end of the box.
	Escape bool `json:"escape,omitempty"`
	// Grow: do nothing but take so many bytes of memory.
	Grow int64 `json:"grow,omitempty"`
}

// Tried is what came of one attempt.
type Tried struct {
	What string `json:"what"`
	// Err is the name of an errno, or other words; empty if it worked.
	Err string `json:"err,omitempty"`
	// Text is what was answered.
	Text string `json:"text,omitempty"`
	// Took is how long it took, in ms, where several controls are tried in one list.
	Took float64 `json:"took,omitempty"`
}

// Process is an entry of the box's /proc.
type Process struct {
	PID     int    `json:"pid"`
	Program string `json:"program"` // as the kernel shortens it
}

// Seen is what a box showed from inside.
type Seen struct {
	Get      Tried   `json:"get"`
	Refused  []Tried `json:"refused"`
	Dials    []Tried `json:"dials"`
	Packets  []Tried `json:"packets"`
	Names    []Tried `json:"names"`
	Abstract Tried   `json:"abstract"`
	// Interfaces of the box's network.
	Interfaces []string `json:"interfaces"`
	// Status is what the kernel says of this process: fields of /proc/self/status.
	Status map[string]string `json:"status"`
	// Powers are calls that take a capability, tried.
	Powers []Tried `json:"powers"`
	// Calls are system calls that the filter turns away, tried.
	Calls []Tried `json:"calls"`
	// Spaces are the box's namespaces, by kind.
	Spaces    map[string]string `json:"spaces"`
	Processes []Process         `json:"processes"`
	Files     []Tried           `json:"files"`
	// Written are folders in which a file was made, or not.
	Written []Tried `json:"written"`
	// Tunnel is what the proxy answered, and how the greeting of TLS ended there.
	Tunnel Tried `json:"tunnel"`
	// Kernel is what the box's kernel says of itself.
	Kernel Kernel `json:"kernel"`
	// Took is how long each other group of attempts took, in ms.
	Took    map[string]float64 `json:"took"`
	Forked  int                `json:"forked"`
	ForkErr string             `json:"forkErr,omitempty"`
}

// Kernel is what a kernel says of itself: its release, the name of its build, and the
// id that it drew when it was started, empty where it shows none.
type Kernel struct {
	Release string `json:"release"`
	Build   string `json:"build"`
	Boot    string `json:"boot,omitempty"`
}

// Args is the command line, after the program, that asks it.
func Args(a Ask) []string {
	b, err := json.Marshal(a)
	if err != nil {
		panic(err) // strings and numbers always encode
	}
	return []string{Arg, string(b)}
}

// ReadAsk reads the last argument of that command line.
func ReadAsk(text string) (*Ask, error) {
	var a Ask
	if err := json.Unmarshal([]byte(text), &a); err != nil {
		return nil, fmt.Errorf("a probe box was asked something that cannot be read: %w", err)
	}
	return &a, nil
}

// Read finds what a box showed in what it wrote. A box that printed anything
// else has shown nothing.
func Read(stdout []byte) (*Seen, error) {
	var s Seen
	if err := json.Unmarshal(stdout, &s); err != nil {
		return nil, fmt.Errorf("a probe box answered with something else than what it saw: %w", err)
	}
	return &s, nil
}
