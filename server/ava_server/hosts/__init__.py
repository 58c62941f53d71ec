"""The hosts that Ava knows, and changes of their configuration files: `ava init`, `ava doctor`, advice about keys.

`known.HOSTS` is the table of hosts; `formats.Configuration` edits one file; `change` plans and applies a change, also
of the rules for the tools that a host may call without asking.

What must hold: a file keeps every character that Ava does not have to change. A change is only written if the new text
says exactly what was intended and nobody else has changed the file; a backup of the old text is kept beside it. No key
is ever written.
"""
