"""How many statements a database of the server was asked, by the extension pg_stat_statements."""

from __future__ import annotations

import psycopg
from support.postgres import PostgresServer


def enable(server: PostgresServer) -> None:
    """Have the server count statements; it is restarted."""
    server.configure("shared_preload_libraries = 'pg_stat_statements'", "pg_stat_statements.max = 10000")
    server.stop()
    server.start()
    with psycopg.connect(server.url("postgres"), autocommit=True) as conn:
        conn.execute("CREATE EXTENSION pg_stat_statements")


def counted(server: PostgresServer, database: str) -> int:
    """Return how many statements a database was asked until now, without BEGIN, COMMIT and ROLLBACK."""
    sql = """SELECT coalesce(sum(calls), 0) FROM pg_stat_statements
             WHERE dbid = (SELECT oid FROM pg_database WHERE datname = %s)
             AND query !~* '^(begin|commit|rollback)'"""
    with psycopg.connect(server.url("postgres"), autocommit=True) as conn:
        (calls,) = conn.execute(sql, (database,)).fetchone() or (0,)
        return int(calls)
