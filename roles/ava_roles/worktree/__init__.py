"""One run's work on a git repository: a worktree to change, a check tree to verify in, and the branch that stays.

The seam is `WorktreeSession`, which works by a `WorktreeSpec` and returns `Baseline`, `Verdict` and `Branch`. git runs
only with directories that Ava makes, so nothing of the user's configuration, hooks or filters runs. Until the branch is
published, nothing is written to the user's repository; then only objects and that one branch. Changes outside of the
namespace are undone. `state` saves enough to continue after a crash at any point.
"""
