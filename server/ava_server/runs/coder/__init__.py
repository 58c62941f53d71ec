"""Runs that change files of a repository: their worktree, its check by the verify command, and the branch they leave.

`coding.py` does the work with `ava_roles.worktree`; `travel.py` takes repositories and folders from one machine to
another through the log's database. What must hold: the person's checkout stays as it is, and what a run has changed is
kept on a branch, however the run ends.
"""
