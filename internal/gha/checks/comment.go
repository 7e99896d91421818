package checks

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"

	"github.com/google/go-github/v62/github"
)

const (
	perPage = 100
	// maxPages bounds the search for our comment. Beyond it none is made: it
	// might be the second.
	maxPages = 10
)

var errTooMany = errors.New("the pull request has too many comments to find its own among them")

// comment finds the comment of this gate and updates it, or makes it.
func (s *session) comment(ctx context.Context, c *Comment) *failure {
	me, f := s.whoAmI(ctx)
	if f != nil {
		return f
	}
	var tooMany bool
	f = s.try(ctx, func(int) (*github.Response, error) {
		// Searched again before each try: an answer that got lost may have been
		// the one that made it.
		id, resp, err := s.find(ctx, c.Marker, me)
		switch {
		case errors.Is(err, errTooMany):
			tooMany = true
			return nil, nil
		case err != nil:
			return resp, err
		case id == 0 && c.OnlyUpdate:
			return nil, nil
		case id == 0:
			_, resp, err = s.api.Issues.CreateComment(ctx, s.at.Owner, s.at.Repo, s.at.Pull, &github.IssueComment{Body: &c.Body})
		default:
			_, resp, err = s.api.Issues.EditComment(ctx, s.at.Owner, s.at.Repo, id, &github.IssueComment{Body: &c.Body})
		}
		return resp, err
	})
	if tooMany {
		return &failure{final, errTooMany.Error()}
	}
	return f
}

// find gives the id of our comment, or 0.
func (s *session) find(ctx context.Context, marker, me string) (int64, *github.Response, error) {
	opts := &github.IssueListCommentsOptions{ListOptions: github.ListOptions{PerPage: perPage}}
	for range maxPages {
		list, resp, err := s.api.Issues.ListComments(ctx, s.at.Owner, s.at.Repo, s.at.Pull, opts)
		if err != nil {
			return 0, resp, err
		}
		for _, c := range list {
			if ours(c, marker, me) {
				return c.GetID(), resp, nil
			}
		}
		if resp.NextPage == 0 {
			return 0, resp, nil
		}
		opts.Page = resp.NextPage
	}
	return 0, nil, errTooMany
}

// ours: the marker can be read by anybody and pasted into a comment, which would
// then be shown as theirs with our words in it. So the author has to be us; both
// APIs write an app's name with the [bot] that no person's can have.
func ours(c *github.IssueComment, marker, me string) bool {
	return c.GetID() != 0 && me != "" && c.GetUser().GetLogin() == me && strings.HasPrefix(c.GetBody(), marker)
}

// whoAmI is the author of what this token writes. The REST API tells that to
// people only; the other one tells it to apps, and so to a job's token, too.
func (s *session) whoAmI(ctx context.Context) (string, *failure) {
	var got struct {
		Data struct{ Viewer struct{ Login string } }
	}
	f := s.try(ctx, func(int) (*github.Response, error) {
		req, err := s.api.NewRequest(http.MethodPost, graphQL(s.api.BaseURL), map[string]string{"query": "{viewer{login}}"})
		if err != nil {
			return nil, err
		}
		return s.api.Do(ctx, req, &got)
	})
	switch {
	case f != nil && f.kind == final:
		f.text = "it cannot be told which comments are its own: " + f.text
		return "", f
	case f != nil:
		return "", f
	case got.Data.Viewer.Login == "":
		return "", &failure{final, "it cannot be told which comments are its own: the API does not say who the token is"}
	}
	return got.Data.Viewer.Login, nil
}

// graphQL is where the other API is: beside the first one, and so on its host. A
// server of one's own has them at /api/v3/ and /api/graphql.
func graphQL(base *url.URL) string {
	at := *base
	at.Path = strings.TrimSuffix(strings.TrimSuffix(at.Path, "/"), "/v3") + "/graphql"
	return at.String()
}
