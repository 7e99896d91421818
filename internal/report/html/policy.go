package html

import (
	"crypto/sha256"
	"encoding/base64"
)

// policy is what a browser allows the page to do: to use these two assets, to draw
// the images that it carries itself, and nothing else. Trusted types are an inner wall: even app.js cannot turn text
// into markup or code, because no policy that would make either may exist.
//
// A page cannot forbid by itself to be shown in a frame of another; there is
// nothing on it to be clicked that does anything.
func policy() string {
	return "default-src 'none'; style-src " + hash(style) + "; script-src " + hash(script) + "; img-src data:" +
		"; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
}

func hash(asset string) string {
	sum := sha256.Sum256([]byte(asset))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}
