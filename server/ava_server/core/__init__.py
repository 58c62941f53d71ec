"""What every other package may use: errors, ids, whole and private files, the data root, threads, shutdown.

What must hold: it imports no other package of the server. A file is replaced as a whole or not at all, and a file of
secrets is only read if nobody but its owner can read or replace it; an error never quotes it. With the log in Postgres,
the files that `shared_files.py` names are rows that all servers share. Only `PrivateFile` and `WatchedFile` know that,
and `config/changes.py`, for the limits of users.
"""
