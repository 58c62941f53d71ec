"""`ava doctor`: `command.py` shows what is found; the other files hold the checks, and `checks.py` lists them."""
