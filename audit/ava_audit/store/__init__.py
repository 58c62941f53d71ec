"""The SQLite store: it runs commands and queries, and keeps the log durable.

Seam: `Store` takes commands (`do`, `post`) and queries (`read`); `ava_audit.view` defines both. One thread writes
(`writer.py`), each batch in one transaction under a lock between processes (`locks.py`), and acknowledges after the
commit. Others read (`readers.py`), each query in one consistent state, on connections that cannot write. `schema.py`
opens and migrates the database; `schema.sql` stays as it was released, and later changes are migrations.
"""
