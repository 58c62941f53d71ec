"""What surfaces show of a run, drawn once: its state, its result, its entries in the log, decisions and sums.

`view_run` makes a `RunView` from the log; everything that a person, a host or a script reads of a run follows from it.
What somebody else wrote (a model, a tool, a person, a file's name) is an `UntrustedText`, so that no printer takes it
for Ava's own words. `host_text.py` prints for hosts; the printers for terminals and pages are in `cli/`, `dashboard/`
and `web/`, and lay out by themselves what they share: a `RunView`, its `Result`, entries as lines and steps, decisions,
and the sums of reports.

What must hold: this room only reads, and imports nothing that acts. Each printer escapes each `UntrustedText`.
"""
