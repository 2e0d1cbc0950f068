"""The command as a file for spark-submit, in a folder without other modules that it might find."""
