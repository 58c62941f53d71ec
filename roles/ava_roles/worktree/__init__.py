"""One run's work on a git repository: a worktree to change, a check tree to verify in, and the branch that stays.

The seam is `WorktreeSession`, which works by a `WorktreeSpec` and returns `Baseline`, `Verdict` and `Branch`. `state`
saves enough to continue after a crash at any point. `publish` makes the branch, packs a commit for another
machine and brings its branch back.

What must hold: git runs only with directories that Ava makes, so nothing of the user's configuration, hooks or filters
runs. Until the branch is published, nothing is written to the user's repository; then only objects and that one branch,
whose tree is the one that was verified. Changes outside of the namespace are undone.
"""
