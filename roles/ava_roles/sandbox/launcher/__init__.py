"""The supervisor of commands: a separate program, started with `python -I -S`, that uses the standard library alone.

The server imports only `spec`, `kernel.measure` and a few helpers of `supervisor` itself. A supervisor runs one command
at a time, and takes another only after one that ended by itself and left nothing.
Starting must stay fast: do not import `typing`, `dataclasses` or `pathlib` here.
"""
