"""Runs that somebody else's coding agent does: Claude Code, Codex, opencode, Gemini CLI, or another that speaks ACP.

Seam: `work.py` does the work of a run in place of the loop's own turns; everything around it (the claim, the caps of
time, cancelling, a coder's worktree, the result) stays `runs/turn/loop.py`. `acp.py` speaks with the agent, whose whole
process tree is in the sandbox. The only server that it reaches is the run's `gateway.py`, which reads requests with
`bodies.py` and has each reserved by `metering.py`; `work.RunTools` are Ava's own tools behind it.

What must hold: a model request is reserved in every cap before it is forwarded, and settled from the provider's own
usage. What the agent tells about itself is never taken for measured. The agent gets a secret of this run alone, never
a provider's key. Nothing is downloaded.
"""
