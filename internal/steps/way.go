package steps

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/egress"
	"github.com/untrusted-steps/untrusted-steps/internal/gha"
)

// way is one step's way out: its proxy, and what the box needs to find it.
type way struct {
	proxy    *egress.Proxy
	forwards []egress.Forward
	expected []egress.Rule
}

// openWay makes the way out of a step, nil if it has none. Load has read every
// rule before, so an error here is ours.
func (r *Runner) openWay(s PlanStep) (*way, error) {
	if !s.hasWay() {
		return nil, nil
	}
	bug := func(err error) error { return fmt.Errorf("steps: bug: rules passed the check: %w", err) }
	allow, err := expand(s.EgressAllow)
	if err != nil {
		return nil, bug(err)
	}
	deny, err := expandDeny(s.EgressDeny)
	if err != nil {
		return nil, bug(err)
	}
	w := &way{}
	if w.expected, err = expandDeny(s.ExpectDenied); err != nil {
		return nil, bug(err)
	}
	if w.forwards, err = egress.Forwards(allow); err != nil {
		return nil, bug(err)
	}
	ledger := &egress.Ledger{Step: s.ID}
	if r.EgressLog != nil {
		ledger.Log = &maskedLines{w: r.EgressLog, m: r.Masker}
	}
	w.proxy = r.NewProxy(egress.Policy{Allow: allow, Deny: deny, Audit: s.EgressMode == ModeAudit}, ledger)
	w.proxy.MaxBytes = s.EgressMaxBytes
	return w, nil
}

// maskedLines takes secrets out of lines of JSON: a step that was given one can
// ask for it as a host name. Only what the step chose is looked at; a secret
// that happens to be one of our words does not change them.
type maskedLines struct {
	w io.Writer
	m *gha.Masker
}

func (l *maskedLines) Write(p []byte) (int, error) {
	if l.m.Longest() == 0 {
		return l.w.Write(p)
	}
	var out []byte
	for line := range bytes.Lines(p) {
		var fields map[string]any
		d := json.NewDecoder(bytes.NewReader(line))
		d.UseNumber()
		if err := d.Decode(&fields); err != nil {
			return 0, fmt.Errorf("steps: bug: a line of the request log is no JSON: %w", err)
		}
		for _, k := range []string{"host", "sni", "path", "method"} {
			if s, ok := fields[k].(string); ok {
				fields[k] = l.m.Mask(s)
			}
		}
		text, err := json.Marshal(fields)
		if err != nil {
			return 0, err
		}
		out = append(append(out, text...), '\n')
	}
	if _, err := l.w.Write(out); err != nil {
		return 0, err
	}
	return len(p), nil
}

// attach tells the box of the way out.
func (w *way) attach(j *box.Job) {
	j.Proxy, j.Forwards, j.ExpectDenied = w.proxy, w.forwards, w.expected
	for _, f := range w.forwards {
		j.Spec.Listen = append(j.Spec.Listen, f.Listen)
		if f.NeedsAddr && !slices.Contains(j.Spec.Addrs, f.Listen.Addr()) {
			j.Spec.Addrs = append(j.Spec.Addrs, f.Listen.Addr())
		}
	}
	j.Spec.Hosts = egress.HostsLines(w.forwards)
}

// report writes down whom the step talked to, and what its list should be.
func (w *way) report(sr *StepResult, s PlanStep) {
	records := w.proxy.Ledger.Records()
	for _, rec := range records {
		sr.Egress = append(sr.Egress, EgressRecord{
			Host: rec.Host, Port: rec.Port, Protocol: rec.Protocol, Verdict: rec.Verdict, Reason: rec.Reason, Rule: rec.Rule,
			Count: rec.Count, BytesIn: rec.BytesIn, BytesOut: rec.BytesOut,
			Expected: rec.Verdict == egress.Denied && egress.Expected(w.expected, rec),
		})
	}
	if s.EgressMode == ModeAudit {
		sr.EgressProposal = append(sr.EgressProposal, egress.Proposal(records)...)
		return
	}
	sr.EgressUnused = append(sr.EgressUnused, egress.Unused(s.EgressAllow, records)...)
	sr.EgressTooWide = egress.TooWide(s.EgressAllow, records)
}
