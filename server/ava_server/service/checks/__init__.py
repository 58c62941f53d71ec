"""Checks that are cheap and safe in a running server, for `ava doctor` and the page `/health`.

A check takes a `Setup` and yields `Finding`s, each with what to do. It reads files and tries locks, and creates, writes
and sends nothing.
"""
