"""Options of commands: flags over environment over file over defaults, and their types."""
