package egress

import "time"

// Bounds on everything that comes from a box or from the network. Each keeps
// one step from holding memory, descriptors or time that others need.
const (
	maxConns    = 1024      // connections of one step at a time
	maxHead     = 16 << 10  // bytes of one request head
	maxFields   = 128       // header fields of one request
	maxHello    = 64 << 10  // bytes of one ClientHello, record headers included
	maxName     = 253       // characters of a host name (RFC 1035, without the root's dot)
	maxShown    = 255       // bytes of a destination kept as it was written
	maxAddrs    = 256       // addresses one name may have; more is an answer gone wrong
	maxDials    = 8         // addresses tried for one request
	maxRespHead = 256 << 10 // bytes of one response head, interim responses included
	maxInterim  = 8         // interim (1xx) responses before the real one
	maxDistinct = 4096      // distinct destinations kept per verdict; the rest are counted together
	maxForwards = 64        // tcp:// rules of one step
	maxBytes    = 64 << 30  // bytes of one step, both directions of all connections together
	maxLog      = 256 << 20 // bytes of the request log of one step; past it, lines are only counted
	maxPeek     = 16 << 10  // bytes of a client kept to tell its protocol
	maxPipes    = 64        // with up to 1 MiB in each, for the long streams of one step at a time
	keptPipes   = 8         // of them, while no stream needs one
	logBuffer   = 32 << 10
	copyBuffer  = 128 << 10
	maxLinger   = 256 << 10 // bytes read and dropped after a refusal

	headTimeout    = 10 * time.Second // from accept, or from the first byte of a later request
	nextTimeout    = time.Minute      // between two requests on one connection
	helloTimeout   = 10 * time.Second
	resolveTimeout = 5 * time.Second
	dialTimeout    = 10 * time.Second // for all addresses of a name together
	idleTimeout    = 5 * time.Minute  // a tunnel or a body with no byte in either direction
	writeTimeout   = 10 * time.Second // for our own short answers
	lingerTimeout  = time.Second
	sweepTime      = 5 * time.Millisecond // an accept queue silent for so long is empty
	ownAddrsAge    = time.Second
	acceptPause    = 20 * time.Millisecond // after running out of descriptors
)
