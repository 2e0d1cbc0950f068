"""The process from which Spark forks its Python workers, with the modules of their tasks.

Else each worker imports them, and collects their garbage after every task.
"""

import gc
import importlib
import sys

from pyspark import daemon

if __name__ == "__main__":
    for name in (sys.argv[1], "store.pipeline.nightly", "store.pipeline.source"):
        importlib.import_module(name)
    gc.freeze()
    daemon.manager()
