"""What a person has configured: settings, keys, secrets, tokens, users, the PIN, passkeys, trust in role files.

The seam is `settings.load_settings`. Settings are read once, at the start of a process; everything else when it is
needed, because people change it meanwhile.

What must hold: an environment variable can tighten a limit that holds for everybody, and never loosen it
(`FOR_EVERYBODY`). No key or secret is in a setting, a `repr` or an error.
"""
