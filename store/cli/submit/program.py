"""The command `storenode`, as a program that spark-submit runs."""

from storenode.cli.main import main

if __name__ == "__main__":
    main()
