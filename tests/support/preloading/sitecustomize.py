"""Has Spark's Python workers forked with what they need, which each would import for itself.

Python imports this by itself where its folder is on the path. A session asks a new worker about
every data source and every plan: to import pandas and the pipeline is most of what that costs.
"""

import sys

NEEDED = (
    "pandas",
    "pyspark.worker",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "store.pipeline.source",
)

if "pyspark.daemon" in sys.orig_argv:
    import gc
    from importlib import import_module

    for each in NEEDED:
        import_module(each)
    gc.freeze()
