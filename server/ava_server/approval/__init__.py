"""Approval: resolves a spawn's arguments to a configuration, proposes it, and takes the decision on it.

The way is `requests` (arguments) -> `resolve` (configuration) -> `proposals` (what is shown) -> `decisions`. The seam
is the `RunConfig` with its digest, and `questions.Person` for clients that can ask a person. What must hold: nothing
runs before it is approved; an approval repeats the exact line that was shown, covers exactly that configuration, and
may only lower its limits; a group starts completely or not at all.
"""
