"""Keeps a subagent's files and commands inside its workspace.

`paths.Root` reads and writes files beneath one folder. `sandbox.Sandbox` is the protocol for running commands;
`selection.find_sandbox` returns the strongest one that withstands an attack on this machine. `CommandWorkspace` gives
commands a folder to work in, `workspace` decides which folder a run may use, and `git` alone decides which git
folder a checkout has. `launcher` is a program of its own: a guard, which only waits, and its child, the supervisor,
each of which ends everything when the other is killed; `supervised` hands a supervisor on to the next command.
`agent_command` starts somebody else's agent, which reaches one local server: `launcher/relay.py` passes its
connections on, from outside of the sandbox.

Invariants: a path is opened beneath a descriptor first and checked then, never in the other order, so no name, link or
race leads out of a root. No process of a command survives its end or the server's. A command inherits nothing from the
server's environment. Where no sandbox withstands the attack, no command runs. A new rule begins with an attack in
`attacker.py`, so that a sandbox without the rule is refused.
"""
