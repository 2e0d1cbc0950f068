"""`python -m storenode.cli` is the command `storenode`."""

from storenode.cli.main import main

main()
