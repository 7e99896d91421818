package egress

// Verdict words of a record.
const (
	Allowed = "allowed"
	Denied  = "denied"
	Failed  = "failed"
)

// Protocol words of a record. A tunnel is "connect" until a ClientHello has
// shown what it carries. What a tcp:// rule let through is "tcp/" and what it
// looked like: ssh, tls, http, postgres, mysql, redis, smtp or unknown.
const (
	ProtocolHTTPS   = "https"
	ProtocolHTTP    = "http"
	ProtocolConnect = "connect"
	ProtocolTCP     = "tcp"
)

// Reasons of denials.
const (
	ReasonNoRule       = "no_rule"
	ReasonDenyRule     = "deny_rule"
	ReasonPort         = "port"
	ReasonIPLiteral    = "ip_literal"
	ReasonBadName      = "bad_name"
	ReasonMetadata     = "metadata"
	ReasonNonPublic    = "non_public"
	ReasonSelf         = "self"
	ReasonNotTLS       = "not_tls"
	ReasonNoSNI        = "no_sni"
	ReasonSNIMismatch  = "sni_mismatch"
	ReasonECH          = "ech"
	ReasonHostMismatch = "host_mismatch"
	ReasonUpgrade      = "upgrade"
	ReasonBadRequest   = "bad_request"
	ReasonMaxBytes     = "max_bytes"
)

// Reasons beside an allowed request, where it was not simply a rule.
const (
	ReasonAudit   = "audit"
	ReasonPrivate = "private"
)

// Reasons of failures: nothing was refused, it did not work.
const (
	ReasonResolve   = "resolve"
	ReasonDial      = "dial"
	ReasonUpstream  = "upstream"
	ReasonNoHello   = "no_hello"
	ReasonOverload  = "overload"
	ReasonCancelled = "cancelled"
	ReasonHostAddrs = "host_addrs"
)

// Meaning says a reason in one sentence of ours; empty for a word that is none.
func Meaning(reason string) string {
	for _, m := range meanings {
		if m.reason == reason {
			return m.text
		}
	}
	return ""
}

var meanings = []struct{ reason, text string }{
	{ReasonNoRule, "no rule of the step's egressAllow names this host"},
	{ReasonDenyRule, "a deny rule names this host"},
	{ReasonPort, "a rule names this host, but not this port"},
	{ReasonIPLiteral, "the destination is an address; rules are about names, and only a tcp:// rule allows one"},
	{ReasonBadName, "the destination is not a host name"},
	{ReasonMetadata, "the destination is a cloud metadata service"},
	{ReasonNonPublic, "the name has an address that is not public; only a rule with private: true allows that"},
	{ReasonSelf, "the destination is this proxy or the machine it runs on"},
	{ReasonNotTLS, "the tunnel did not open with a TLS ClientHello; only a tcp:// rule allows anything else"},
	{ReasonNoSNI, "the TLS ClientHello names no server"},
	{ReasonSNIMismatch, "the TLS ClientHello names another server than the tunnel was asked for"},
	{ReasonECH, "the TLS ClientHello hides the server's name"},
	{ReasonHostMismatch, "the Host field names another host than the request line"},
	{ReasonUpgrade, "the request wants to change the protocol of the connection"},
	{ReasonBadRequest, "the request is not one well-formed proxy request"},
	{ReasonMaxBytes, "the step has moved all the bytes it may"},
	{ReasonAudit, "no rule names this host; the step is only being watched"},
	{ReasonPrivate, "the rule is marked private, and the address is not public"},
	{ReasonResolve, "the name could not be resolved"},
	{ReasonDial, "no address of the name could be connected to"},
	{ReasonUpstream, "the server ended the connection without an answer"},
	{ReasonNoHello, "the client ended the tunnel before it said anything"},
	{ReasonOverload, "the step has too many connections open"},
	{ReasonCancelled, "the step, or its client, ended first"},
	{ReasonHostAddrs, "the machine's own addresses could not be listed, so none could be ruled out"},
}
