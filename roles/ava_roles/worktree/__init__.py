"""Where the changes of a run are made, checked and kept: a worktree of its own, a second one to check in, a branch."""
