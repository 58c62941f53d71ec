"""Who may do what: role files, the tools of subagents, and their confinement."""
