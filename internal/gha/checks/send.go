package checks

import (
	"context"
	"fmt"

	"github.com/google/go-github/v62/github"
)

// checkRun makes the check run whole at once, conclusion and all: if we do not
// get any further, what is missing is remarks and not the verdict.
func (s *session) checkRun(ctx context.Context, c *CheckRun) *failure {
	output := func(n int) *github.CheckRunOutput {
		o := &github.CheckRunOutput{Title: &c.Title, Summary: &c.Summary}
		if n < len(c.Batches) {
			o.Annotations = annotations(c.Batches[n])
		}
		return o
	}
	opts := github.CreateCheckRunOptions{
		Name: c.Name, HeadSHA: s.at.SHA, Status: github.String("completed"), Conclusion: &c.Conclusion,
		CompletedAt: &github.Timestamp{Time: s.Now().UTC()}, Output: output(0),
	}
	if s.at.RunURL != "" {
		opts.DetailsURL = &s.at.RunURL
	}
	var made *github.CheckRun
	f := s.try(ctx, func(int) (resp *github.Response, err error) {
		// After an answer that got lost there may be two. They say the same, and
		// the later one counts.
		made, resp, err = s.api.Checks.CreateCheckRun(ctx, s.at.Owner, s.at.Repo, opts)
		return resp, err
	})
	if f != nil || len(c.Batches) < 2 {
		return f
	}
	if made.GetID() == 0 {
		return &failure{final, "the API did not say which one it made, so only its first annotations are shown"}
	}
	for n := 1; n < len(c.Batches); n++ {
		f := s.try(ctx, func(int) (*github.Response, error) {
			_, resp, err := s.api.Checks.UpdateCheckRun(ctx, s.at.Owner, s.at.Repo, made.GetID(),
				github.UpdateCheckRunOptions{Name: c.Name, Output: output(n)})
			return resp, err
		})
		if f != nil {
			left := 0
			for _, b := range c.Batches[n:] {
				left += len(b)
			}
			f.text = fmt.Sprintf("%d annotations are not shown: %s", left, f.text)
			return f
		}
	}
	return nil
}

func annotations(list []Annotation) []*github.CheckRunAnnotation {
	out := make([]*github.CheckRunAnnotation, len(list))
	for i := range list {
		a := &list[i]
		out[i] = &github.CheckRunAnnotation{Path: &a.Path, StartLine: &a.Line, EndLine: &a.Line, AnnotationLevel: &a.Level, Message: &a.Message}
		if a.Title != "" {
			out[i].Title = &a.Title
		}
		if a.Column > 0 {
			out[i].StartColumn, out[i].EndColumn = &a.Column, &a.Column
		}
	}
	return out
}

func (s *session) status(ctx context.Context, c *Status) *failure {
	st := &github.RepoStatus{State: &c.State, Description: &c.Description, Context: &c.Context}
	if s.at.RunURL != "" {
		st.TargetURL = &s.at.RunURL
	}
	return s.try(ctx, func(int) (*github.Response, error) {
		_, resp, err := s.api.Repositories.CreateStatus(ctx, s.at.Owner, s.at.Repo, s.at.SHA, st)
		return resp, err
	})
}
