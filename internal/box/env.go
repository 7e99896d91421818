package box

import "strings"

// Environment is what a box's environment is made from.
type Environment struct {
	Path     []string // the box's PATH
	CABundle string   // certificate bundle inside the box; empty for none
	Egress   []string // proxy variables, "K=V"; empty where there is no way out
	Image    []string // the image's own, "K=V"
	Step     []string // env and passEnv of the step, "K=V"
}

// caVariables are the names under which common clients look for a bundle.
var caVariables = []string{"SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO"}

// List gives the whole environment, each name once; what comes later in the
// order ours, image's, step's wins. Nothing is taken from our own environment.
func (e Environment) List() []string {
	all := []string{
		"PATH=" + strings.Join(e.Path, ":"),
		"HOME=" + HomeTarget,
		"USER=root", // the name of the box's only id in its own passwd file
		"TMPDIR=/tmp",
		"LANG=C.UTF-8",
		// A read-only look must not write: git status would refresh the index.
		"GIT_OPTIONAL_LOCKS=0",
	}
	if e.CABundle != "" {
		for _, n := range caVariables {
			all = append(all, n+"="+e.CABundle)
		}
	}
	all = append(all, e.Egress...)
	all = append(all, e.Image...)
	all = append(all, e.Step...)

	at := map[string]int{}
	var out []string
	for _, kv := range all {
		name, _, _ := strings.Cut(kv, "=")
		if i, ok := at[name]; ok {
			out[i] = kv
			continue
		}
		at[name] = len(out)
		out = append(out, kv)
	}
	return out
}
