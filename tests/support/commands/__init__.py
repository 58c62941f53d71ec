"""Parts and surroundings of the command line, for tests of commands."""
