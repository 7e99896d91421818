package steps

import (
	"bytes"
	_ "embed"
)

// They are written from the Go types by a test (go test -run Schema -update),
// which fails when they differ.
var (
	//go:embed schema/steps.schema.json
	stepsSchema []byte
	//go:embed schema/report.schema.json
	reportSchema []byte
	//go:embed schema/policy.schema.json
	policySchema []byte
)

// Schema is the JSON Schema of a steps file, for editors. What only several keys show together, and what
// this machine decides, only Load can tell.
func Schema() []byte { return bytes.Clone(stepsSchema) }

// ReportSchema is the JSON Schema of report.json. It lets unknown fields pass,
// because fields are only ever added.
func ReportSchema() []byte { return bytes.Clone(reportSchema) }

// PolicySchema is the JSON Schema of a policy, for editors.
func PolicySchema() []byte { return bytes.Clone(policySchema) }
