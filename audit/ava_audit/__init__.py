"""The audit log: one append-only, hash-chained, searchable log, and the state derived from it.

`events.py` is the closed set of events, `entries.py` their stored form. `reducers.py` derives the projections
(`rows.py`) from the entries; `projections.py` stores them in tables, and `view.py` reads them. `store/` writes and
reads the database. `search.py` has the text index and answers log queries; `mirror.py` writes the JSONL files;
`retention.py` erases old content; `maintenance.py` runs these duties in the background; `verify.py` checks everything.
`redaction/` finds secrets in text.

Seam: a command is a pure function `(View, now) -> Outcome` for `Store.do`, a query is a function of `View` for
`Store.read`. `reducers.State` is implemented twice: by the tables, and in memory for `verify`.

Invariants: an entry never changes, except that erasure removes the content of a transcript, and the hash chain still
verifies. Commands and reducers read no clock, setting or file. Reducers read no transcript content. A new field of an
event has a default. Only three modules contain SQL that writes, and only the writer's thread executes it.
"""
