"""What keeps a subagent inside its workspace and off the local network."""
