"""Caps and reservations."""
