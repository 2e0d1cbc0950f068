"""`python -m store.cli` is the command `storenode`."""

from store.cli.main import main

main()
