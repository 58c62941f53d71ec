"""Keeps a subagent's files and commands inside its workspace.

`paths.Root` reads and writes files beneath one folder. `sandbox.Sandbox` is the protocol for running commands;
`selection.find_sandbox` returns the strongest one that withstands an attack on this machine. `CommandWorkspace` gives
commands a folder to work in, and `workspace` decides which folder a run may use.

Invariants: no name, link or race leads out of a root; no process of a command survives its end or the server's; a
command inherits nothing from the server's environment; where no sandbox withstands the attack, no command runs.
"""
