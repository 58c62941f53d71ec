"""What a person has configured: settings, keys, secrets, tokens, users, role trust."""
