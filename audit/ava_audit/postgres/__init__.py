"""The log on a Postgres server (extra `postgres`), behind the same `Backend` and `Database` as the embedded one.

`backend.py` is the seam. `server.py` has the connection that comes back after a loss, `leases.py` the processes of
several machines, `blobs.py` the files beside the log, and `shared_files.py` what is not part of the log: small private
files of the servers. Nothing else of the package imports this folder; `store/sqlite.py` finds it.
"""
