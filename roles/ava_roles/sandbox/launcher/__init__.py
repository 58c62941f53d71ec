"""The supervisor of one command: a program of its own, of the standard library alone, run by `-I -S`.

Nothing here is imported by the server but `order`; nothing here may import what is slow to import.
"""
