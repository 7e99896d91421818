package image

import (
	"bytes"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// picked is one image for this machine, with nothing fetched but what describes it.
type picked struct {
	digest string // what it can be asked for by: of an index or a manifest
	id     string // of its configuration, which names the sums of all its layers
	config Config
	layers []layer
}

// platform is what this machine runs.
func platform() string { return "linux/" + runtime.GOARCH }

func isIndex(t types.MediaType) bool {
	return t == types.OCIImageIndex || t == types.DockerManifestList
}

func isManifest(t types.MediaType) bool {
	return t == types.OCIManifestSchema1 || t == types.DockerManifestSchema2
}

// mediaType is the kind of a manifest, by itself rather than by who hands it out.
func mediaType(raw []byte, said types.MediaType) (types.MediaType, error) {
	var m struct {
		SchemaVersion int             `json:"schemaVersion"`
		MediaType     types.MediaType `json:"mediaType"`
		Config        json.RawMessage `json:"config"`
		Manifests     json.RawMessage `json:"manifests"`
	}
	if err := json.Unmarshal(raw, &m); err != nil {
		return "", refused("its manifest cannot be read: %v", err)
	}
	// One that could be read as either would be two images under one digest.
	if m.Config != nil && m.Manifests != nil {
		return "", refused("its manifest is an index as well")
	}
	switch {
	case m.SchemaVersion != 2:
		return "", refused("its manifest is of version %d, which is out of use; 2 is needed", m.SchemaVersion)
	case m.MediaType != "":
		said = m.MediaType
	case m.Manifests != nil:
		said = types.OCIImageIndex
	case m.Config != nil && !isManifest(said):
		said = types.OCIManifestSchema1
	}
	if isIndex(said) && m.Manifests == nil || isManifest(said) && m.Config == nil || !isIndex(said) && !isManifest(said) {
		return "", refused("its manifest is none of an image (%.100q)", said)
	}
	return said, nil
}

// choose finds the image of an index that is for this machine: the first, or, of an
// archive, which may hold several that have nothing to do with each other, the only.
func choose(raw []byte, only bool) (v1.Descriptor, error) {
	index, err := v1.ParseIndexManifest(bytes.NewReader(raw))
	if err != nil {
		return v1.Descriptor{}, refused("its index cannot be read: %v", err)
	}
	if len(index.Manifests) > maxManifests {
		return v1.Descriptor{}, refused("its index lists %d images, more than %d", len(index.Manifests), maxManifests)
	}
	var fit, other []v1.Descriptor
	var have []string
	for _, d := range index.Manifests {
		p := d.Platform
		switch {
		case !isManifest(d.MediaType) && !isIndex(d.MediaType), d.Annotations["vnd.docker.reference.type"] != "":
		case p == nil || p.OS == "" && p.Architecture == "":
			other = append(other, d)
		case p.OS == "linux" && p.Architecture == runtime.GOARCH:
			fit = append(fit, d)
		default:
			have = append(have, strings.TrimSuffix(p.OS+"/"+p.Architecture, "/"))
		}
	}
	if len(fit) == 0 {
		fit, only = other, true // their configurations say what they are for
	}
	for _, d := range fit {
		if only && d.Digest != fit[0].Digest {
			return v1.Descriptor{}, refused("it holds more than one image; one for %s is needed", platform())
		}
	}
	if len(fit) == 0 {
		return v1.Descriptor{}, refused("it has no image for %s; there are: %.500q", platform(), have)
	}
	d := fit[0]
	if !digestShape().MatchString(d.Digest.String()) {
		return v1.Descriptor{}, refused("its index names a digest that is no SHA-256")
	}
	return d, nil
}

// fetch reads a small part of an image by its digest, and holds it to that.
type fetch func(d v1.Descriptor) ([]byte, error)

// pick follows an index to the image for this machine and reads what describes it.
// open gives a reader of a layer.
func pick(raw []byte, digest string, said types.MediaType, get fetch, l Limits, only bool, open func(v1.Descriptor) layer) (picked, error) {
	p := picked{digest: digest}
	kind, err := mediaType(raw, said)
	for depth := 0; err == nil && isIndex(kind); depth++ {
		if depth == 2 {
			return p, refused("its index lists an index of an index")
		}
		var d v1.Descriptor
		if d, err = choose(raw, only); err != nil {
			break
		}
		if raw, err = get(d); err != nil {
			break
		}
		if only { // what stands around it has no digest
			p.digest, only = d.Digest.String(), false
		}
		kind, err = mediaType(raw, d.MediaType)
	}
	if err != nil {
		return p, err
	}
	m, err := v1.ParseManifest(bytes.NewReader(raw))
	if err != nil {
		return p, refused("its manifest cannot be read: %v", err)
	}
	switch m.Config.MediaType {
	case types.DockerConfigJSON, types.OCIConfigJSON:
	default:
		return p, refused("it is no image, but holds %.100q", m.Config.MediaType)
	}
	config, err := get(m.Config)
	if err != nil {
		return p, err
	}
	p.id = m.Config.Digest.String()
	diffs, err := p.configure(config)
	if err != nil {
		return p, err
	}
	if len(diffs) != len(m.Layers) {
		return p, refused("it has %d layers, and its configuration knows %d", len(m.Layers), len(diffs))
	}
	if len(m.Layers) > l.Layers {
		return p, refused("it has %d layers, more than %d", len(m.Layers), l.Layers)
	}
	var sum int64
	for i, d := range m.Layers {
		if err := layerDescriptor(d); err != nil {
			return p, err
		}
		if sum += d.Size; d.Size < 0 || d.Size > l.Compressed || sum > l.Compressed {
			return p, refused("its layers are more than %d bytes to fetch", l.Compressed)
		}
		next := open(d)
		next.digest, next.size, next.diff = d.Digest.String(), d.Size, diffs[i].String()
		p.layers = append(p.layers, next)
	}
	return p, nil
}

// configure reads the configuration and asks whether it is for this machine.
func (p *picked) configure(raw []byte) ([]v1.Hash, error) {
	config, diffs, f, err := parseConfig(raw)
	if err != nil {
		return nil, err
	}
	if f.OS != "" && f.OS != "linux" || f.Architecture != "" && f.Architecture != runtime.GOARCH {
		return nil, refused("it is for %.100q, and this machine runs %s", f.OS+"/"+f.Architecture, platform())
	}
	p.config = config
	return diffs, nil
}

func layerDescriptor(d v1.Descriptor) error {
	switch {
	case !digestShape().MatchString(d.Digest.String()):
		return refused("a layer has a digest that is no SHA-256")
	case len(d.URLs) > 0 || !d.MediaType.IsLayer() || !d.MediaType.IsDistributable():
		return refused("a layer is of a kind (%.100q) that is not kept where the image is", d.MediaType)
	}
	return nil
}

// small bounds what is read into memory.
func small(d v1.Descriptor) error {
	if d.Size < 0 || d.Size > maxJSON {
		return refused("a part that describes it has %d bytes, more than %d", d.Size, maxJSON)
	}
	if !digestShape().MatchString(d.Digest.String()) {
		return refused("a part that describes it has a digest that is no SHA-256")
	}
	return nil
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
