"""Approval: resolves a spawn's arguments to a configuration, proposes it, and takes the decision on it.

The way is `requests` (arguments) -> `resolve` (configuration) -> `proposals` (what is shown) -> `decisions`. The seam
is the `RunConfig` with its digest, and `decide`, the values of every decision: a surface draws what is `Shown` and
returns a `PersonAnswer`. An argument of an MCP tool is a field of its class in `requests`.

What must hold: nothing runs before it is approved. `resolve` decides everything, and no later code decides again. An
approval repeats the exact line that was shown, covers a digest of the whole configuration, and may only lower its
limits. A decision is a command of the log, so it reads the state inside its own transaction. Several start completely
or not at all.
"""
