"""Runs that change files of a repository: their worktree, its check by the verify command, and the branch they leave.

The seam is `coding.py`: it does the work with `ava_roles.worktree`, which also names the branch (`publish.py` there).
The commit message is in `runs/record/changes.py`. With the log in Postgres, `travel.py` takes repositories and folders
from one machine to another. What must hold: the person's checkout stays as it is, and what a run has changed is kept:
on a branch, or in its worktree until it is on one.
"""
