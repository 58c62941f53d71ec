"""The MCP protocol over any transport: tools, resources, prompts, tasks, the card.

`server.py` routes requests to their handlers, which call the service. `tasks.py` shows runs as MCP tasks: a task has no
state of its own, it is read from the run. `first_answer.py` answers the first `initialize` or `server/discover` before
the SDK is imported, from `first_answers.json`, which `scripts/gen_docs.py` writes, and only with the package versions
named there; the server then handles the same request, and its own answer is dropped.

What must hold: heavy packages are imported only after the server's own answer. A mistake of a caller is an answer with
one next step. A card decides nothing, and reads only `ava://runs/S-…`.
"""
