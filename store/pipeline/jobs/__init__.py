"""One module per job: what it does with a session that is given to it."""
