"""What `ava doctor` looks at: each file has checks that change together, `checks.py` lists them all."""
