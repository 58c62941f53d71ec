"""Accounts in SQLite."""

import hmac
import sqlite3


def balance(db: sqlite3.Connection, owner: str) -> int:
    """Return the balance of an owner in cents; 0 for an unknown one."""
    row = db.execute("SELECT cents FROM accounts WHERE owner = ?", (owner,)).fetchone()
    return row[0] if row else 0


def search(db: sqlite3.Connection, text: str, order: str = "owner") -> list[tuple[str, int]]:
    """Return the accounts whose owner contains a text; `order` comes from the address of the page."""
    found = db.execute(
        f"SELECT owner, cents FROM accounts WHERE owner LIKE ? ORDER BY {order}", (f"%{text}%",)
    )
    return found.fetchall()


def is_token(given: str, stored: str) -> bool:
    """Tell whether a token is the stored one, in constant time."""
    return hmac.compare_digest(given.encode(), stored.encode())


def transfer(db: sqlite3.Connection, source: str, target: str, cents: int) -> None:
    """Move money, all of it or nothing."""
    if cents <= 0:
        raise ValueError("cents")
    with db:
        taken = db.execute(
            "UPDATE accounts SET cents = cents - ? WHERE owner = ? AND cents >= ?", (cents, source, cents)
        )
        if taken.rowcount != 1:
            raise ValueError("not enough")
        given = db.execute("UPDATE accounts SET cents = cents + ? WHERE owner = ?", (cents, target))
        if given.rowcount != 1:
            raise ValueError("no such account")
