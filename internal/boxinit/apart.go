package boxinit

// Apart is for a box whose kernel is not the host's (see package gvisor). That
// kernel gives a process 1 no protection from signals, and the host's control
// group counts what that kernel is made of and not what runs in it. So the first
// process lives under an id that is not the step's, and counts the step's
// processes in a control group of the box's own kernel.
type Apart struct {
	// UID is the first process's id, user and group. The step is 0.
	UID int `json:"uid"`
	// Pids is how many processes and threads the step may have; 0: no bound.
	Pids int64 `json:"pids,omitempty"`
}

// Counted is what the box's own kernel counted of the step's processes.
type Counted struct {
	Refused uint64 `json:"refused,omitempty"` // forks refused at the cap
	Peak    int64  `json:"peak,omitempty"`
	// Asked: it was counted because of Ask.
	Asked bool `json:"asked,omitempty"`
}
