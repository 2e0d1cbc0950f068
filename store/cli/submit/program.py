"""The command `storenode`, as a program that spark-submit runs."""

from store.cli.main import main

if __name__ == "__main__":
    main()
