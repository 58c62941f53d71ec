"""The turns of a run: each reserves, calls the model, settles what that cost, and runs the tools that were called.

`loop.py` is the middle. `setup.py` makes the `RunContext` that a claimed run works with (model, tools, folders,
prompt), and removes its folders and MCP servers at the end. `reservation.py` makes a call fit its caps step by step,
`model_call.py` sends and settles it, `tool_calls.py` runs tools. `first_call.py` computes what the first calls of a
proposal cost, and refuses caps that buy no work; `money_wait.py` and `prompt_prefix.py` have a run wait before a call;
`reuse.py` tells which runs of an earlier plan need not be paid for again.

The seam is `setup.RunSetup`. What must hold: no request leaves whose worst case was not reserved, and the owner is
checked right before it leaves.
"""
