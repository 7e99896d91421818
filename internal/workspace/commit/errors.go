package commit

import "errors"

var (
	// ErrIncomplete: the commit was made but could not be carried out in full.
	// The workspace holds a part of it, and the next Open goes on with it.
	ErrIncomplete = errors.New("the commit is incomplete and will be resumed at the next start")
	// ErrChanged: the workspace was rearranged by something other than us.
	ErrChanged = errors.New("the workspace was changed from outside")
	// ErrPlan: the changes contradict one another, or name no path of a
	// workspace. Whoever made the list has a bug.
	ErrPlan = errors.New("a list of changes that cannot be")
	// ErrUnreadable: a folder whose content is not known is not committed.
	ErrUnreadable = errors.New("its content could not be read")
	// errJournal: what lies in the place of a journal is none.
	errJournal = errors.New("the journal does not parse")
)
