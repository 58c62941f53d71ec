"""The SQLite store: it runs commands and queries, and keeps the log durable.

Seam: `Store` takes commands (`do`, `post`) and queries; `ava_audit.view` defines both. `read` runs a query in a thread.
`look` runs one that reads a few rows by their keys at once, in the event loop's thread, unless the database is on a
server or the disk was slow a moment ago; `short` does the same for searches of a page, and starts again in a thread if
that takes longer than 5 ms. `look.py` reads a log without a `Store`, and creates, locks and migrates nothing. All of it
knows the database only as a `Backend` (`sqlite.py` finds the one of a data root) and its connections as a `Database`.
Instances say which processes live: by lock files on one machine, by leases on several; what their runs do at this
moment is in a file beside the lock, which takes no commit.

What must hold: one thread writes (`writer.py`), each batch in one transaction under a lock between processes, and
acknowledges after the commit. Others read (`store.py`), each query in one consistent state, on connections that
cannot write. `schema.sql` stays as it was released, and later changes are `MIGRATIONS`: a column is a field in
`rows.py` with a default, a function in `schema.py` that adds it with SQL that both databases understand, and
`reducers_changed`.
"""
