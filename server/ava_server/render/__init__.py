"""What surfaces show of a run, drawn once: its state, its result, its entries in the log, decisions and sums.

`view_run` makes a `RunView` from the log; everything that a person, a host or a script reads of a run follows from it.
What somebody else wrote (a model, a tool, a person, a file's name) is `Untrusted`, so a printer that takes a text of
Ava's own cannot print it by mistake. `host_text.py` prints for hosts; the printers for terminals and pages are beside
what they draw on, in `cli/` and `web/`. This room only reads.
"""
