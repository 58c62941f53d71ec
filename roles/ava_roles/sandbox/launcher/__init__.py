"""The supervisor of one command: a separate program, started with `python -I -S`, that uses the standard library alone.

The server starts one supervisor per command and imports only `spec`, `disk` and a few helpers of `supervisor` itself.
Starting must stay fast: do not import `typing`, `dataclasses` or `pathlib` here.
"""
