package steps

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/image"
)

// Origin is where an OCI image comes from: a registry, or an archive on this
// machine. The zero value is none: the step has another root.
type Origin struct {
	Ref     image.Ref
	Archive string // real path
}

// None says whether there is no image.
func (o Origin) None() bool { return o == Origin{} }

// String names it; two origins of one name are the same image.
func (o Origin) String() string {
	if o.Archive != "" {
		return "archive:" + o.Archive
	}
	return o.Ref.String()
}

// Images gives the root file systems of OCI images.
type Images interface {
	// Get gives an image: from the store, or from where it comes from. It takes
	// the time that takes. Whoever gives it keeps it until the run is over.
	Get(context.Context, Origin) (*image.Image, error)
}

// gotten is an image that was asked for.
type gotten struct {
	image *image.Image
	err   error
}

// Fetch gets the images of all steps, so that no step's deadline pays for it. One
// that cannot be had is its steps' failure and is told when they begin; the error
// is for what the host cannot do, where nothing should run at all.
func (r *Runner) Fetch(ctx context.Context, p *Plan) error {
	for _, s := range p.Steps {
		if s.Origin.None() {
			continue
		}
		if _, asked := r.had(s); asked {
			continue
		}
		if err := r.fetch(ctx, s); image.OfHost(err) {
			return fmt.Errorf("image %s: %w", inert(s.Image), err)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

func (r *Runner) fetch(ctx context.Context, s PlanStep) error {
	g := gotten{err: errors.New("steps: bug: nobody gives images")}
	if r.Images != nil {
		g.image, g.err = r.Images.Get(ctx, s.Origin)
	}
	r.gotMu.Lock()
	defer r.gotMu.Unlock()
	if r.got == nil {
		r.got = map[string]gotten{}
	}
	r.got[s.Origin.String()] = g
	return g.err
}

func (r *Runner) had(s PlanStep) (gotten, bool) {
	r.gotMu.Lock()
	defer r.gotMu.Unlock()
	g, ok := r.got[s.Origin.String()]
	return g, ok
}

// Unbuildable says why a step's box will not be built, whatever the engine can do:
// its image could not be had.
func (r *Runner) Unbuildable(s PlanStep) (why string) {
	if s.Origin.None() {
		return ""
	}
	g, asked := r.had(s)
	switch {
	case !asked:
		return "image: " + inert(s.Image) + " was not asked for"
	case g.err != nil:
		return "image: " + inert(s.Image) + ": " + inertWords(g.err.Error())
	}
	return ""
}

// askAgain asks once more for an image whose registry did not answer, where the step
// may be tried again.
func (r *Runner) askAgain(ctx context.Context, s PlanStep, sr *StepResult) {
	if s.Origin.None() {
		return
	}
	if g, _ := r.had(s); errors.Is(g.err, image.ErrNetwork) && r.fetch(ctx, s) == nil {
		sr.ImageDigest = r.digest(s)
	}
}

// digest is what a step's image is known by; empty if there is none.
func (r *Runner) digest(s PlanStep) string {
	if g, _ := r.had(s); !s.Origin.None() && g.image != nil {
		return g.image.Digest
	}
	return ""
}

// imagePath is PATH in a box whose image sets none, as container tools have it.
var imagePath = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// rooted gives a step's root, and what its image adds to the environment. Without an
// image that was had, the root is one that no engine builds.
func (r *Runner) rooted(s PlanStep, env *box.Environment) box.Root {
	if s.Origin.None() {
		return s.Root
	}
	root := box.Root{Kind: box.RootDir, Name: s.Image}
	env.Path = imagePath
	if g, _ := r.had(s); g.image != nil {
		root.Dir, env.Image = g.image.Root, g.image.Config.Env
	}
	return root
}

// imageWorkdir is the folder that a step's image names. It is a text of the
// image's, and a path in the box as any that a step writes: what is not one is "/".
func (r *Runner) imageWorkdir(s PlanStep) string {
	if g, _ := r.had(s); g.image != nil {
		if dir, why := cleanTarget(g.image.Config.WorkingDir); why == "" {
			return dir
		}
	}
	return "/"
}

// ShowImages puts into a plan what is known of its images; look asks nobody.
func (p *Plan) ShowImages(look func(Origin) (*image.Image, error)) {
	for i := range p.Steps {
		s := &p.Steps[i]
		if s.Origin.None() {
			continue
		}
		img, err := look(s.Origin)
		if err != nil {
			s.ImageDigest = s.Origin.Ref.Digest
			continue
		}
		s.ImageDigest, s.ImageUnused = img.Digest, img.Config.NotUsed()
		if s.Workdir == workdirOfImage {
			s.ImageUnused = slices.DeleteFunc(s.ImageUnused, func(w string) bool { return strings.HasPrefix(w, "WORKDIR ") })
		}
		for _, kv := range img.Config.Env {
			name, _, _ := strings.Cut(kv, "=")
			s.ImageEnv = append(s.ImageEnv, name)
		}
		img.Close()
	}
}

// workdirOfImage is the word for the folder that the image names as its WORKDIR.
const workdirOfImage = "image"

const allowedImage = "host, rootfs:DIR, archive:FILE, or an image of a registry such as python:3.12-slim"

func readImage(c *checker, k key, v value, s *step) {
	text, ok := c.text(k.name, k.allowed(), v)
	s.Image, s.rootDir, s.origin = text, "", Origin{}
	dir, isDir := strings.CutPrefix(text, "rootfs:")
	archive, isArchive := strings.CutPrefix(text, "archive:")
	switch {
	case !ok || text == "host":
	case isDir && dir == "":
		c.wrong(v, "rootfs: names no folder", k.allowed())
	case isDir:
		s.rootDir = c.imagePath(v, "the folder of rootfs:", dir, "a root file system", "a folder with nothing else of this machine in it")
	case isArchive && archive == "":
		c.wrong(v, "archive: names no file", k.allowed())
	case isArchive:
		s.origin.Archive = c.imagePath(v, "the file of archive:", archive, "an archive of an image", "a file, or a folder in the layout of the OCI")
	default:
		ref, err := image.Parse(text)
		if err != nil {
			c.wrong(v, "not an image: "+err.Error(), k.allowed())
			return
		}
		s.origin.Ref = ref
		c.images = append(c.images, ImagePlace{Line: v.line, Column: v.col, Text: text, Ref: ref})
	}
}

// imagePath is the real path of what an image is made of. What is not there is the
// step's own failure when it runs, not a wrong file.
func (c *checker) imagePath(v value, what, path, as, allowed string) string {
	if why := badPath(path); why != "" {
		c.wrong(v, what+" "+why, allowed)
		return ""
	}
	if !filepath.IsAbs(path) {
		from, err := c.dir()
		if err != nil {
			c.wrong(v, what+" cannot be made absolute: "+err.Error(), "an absolute path")
			return ""
		}
		path = filepath.Join(from, path)
	}
	real, why := c.guard.Mount(path)
	if why != "" {
		c.wrong(v, "this cannot be "+as+": it "+why, allowed)
		return ""
	}
	return real
}

// imageRule is an item of a policy's images.
type imageRule struct {
	text string
	// exact is host, or rootfs: or archive: with a real path.
	exact string
	// For images of registries: the repository, or with below the folder of
	// repositories; a tag or a digest, or neither for any.
	name, tag, digest string
	below             bool
}

const allowedImageRule = "host, rootfs:/DIR, archive:/FILE, REPOSITORY, REPOSITORY:TAG, REPOSITORY@sha256:..., or a start of repositories with /**"

// imageRule reads an item.
func (c *checker) imageRule(item value) (imageRule, bool) {
	text, ok := c.text("an item of images", allowedImageRule, item)
	r := imageRule{text: text}
	if !ok {
		return r, false
	}
	for _, kind := range []string{"rootfs:", "archive:"} {
		path, is := strings.CutPrefix(text, kind)
		switch {
		case !is:
			continue
		case !filepath.IsAbs(path) || badPath(path) != "":
			c.wrong(item, "what "+kind+" names in a policy is not an absolute path", allowedImageRule)
			return r, false
		}
		r.exact = kind + c.realPath(path)
		return r, true
	}
	if text == "host" {
		r.exact = text
		return r, true
	}
	start, below := strings.CutSuffix(text, "/**")
	if below {
		start += "/x" // a repository in it, as a reference has one
	}
	ref, _, err := image.ParseName(start)
	if err != nil {
		c.wrong(item, "not an image: "+err.Error(), allowedImageRule)
		return r, false
	}
	r.name, r.tag, r.digest, r.below = ref.Name(), ref.Tag, ref.Digest, below
	if below {
		r.name = strings.TrimSuffix(r.name, "x")
	}
	return r, true
}

// allows says whether a step may have its image. A digest need not be what the tag
// beside it stands for, so a rule with a tag allows none with a digest.
func (r imageRule) allows(s *step) bool {
	switch {
	case s.rootDir != "":
		return r.exact == "rootfs:"+s.rootDir
	case s.origin.None():
		return r.exact == s.Image
	case s.origin.Archive != "":
		return r.exact == s.origin.String()
	}
	ref := s.origin.Ref
	switch {
	case r.exact != "":
		return false
	case r.below:
		return strings.HasPrefix(ref.Name(), r.name)
	case ref.Name() != r.name:
		return false
	case r.digest != "":
		return ref.Digest == r.digest
	case r.tag != "":
		return ref.Tag == r.tag && ref.Digest == ""
	}
	return true
}

func readCeilingImages(c *checker, k policyKey, v value, p *Policy) {
	c.items(k, v, func(item value) (string, bool) {
		r, ok := c.imageRule(item)
		if ok {
			p.images = append(p.images, r)
		}
		return r.text, ok
	})
}

func imageTexts(rules []imageRule) string {
	var texts []string
	for _, r := range rules {
		texts = append(texts, r.text)
	}
	return orNone(inertAll(texts, ", "))
}

func overImage(x *excess) {
	if !slices.ContainsFunc(x.p.images, func(r imageRule) bool { return r.allows(x.s) }) {
		x.over(x.s.place("image"), "this image is none that the policy allows", x.s.Image, imageTexts(x.p.images))
	}
}

// overPinned asks for a digest where an image comes from a registry, whose tags can be
// moved by whoever owns them.
func overPinned(x *excess) {
	if o := x.s.origin; x.p.pinned && !o.None() && o.Archive == "" && o.Ref.Digest == "" {
		x.over(x.s.place("image"), "this image has no digest, and the policy asks for one", x.s.Image, "NAME:TAG@sha256:...", "untrusted-steps pin FILE writes the digests")
	}
}
