"""Real servers and commands: the outermost layer."""
