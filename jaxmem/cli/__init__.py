"""Floor 7: the command line. One module a command; only this room reads flags and prints."""
