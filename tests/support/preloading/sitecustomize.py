"""Has Spark's Python workers forked with what they need, which each would import for itself.

Python imports this by itself where its folder is on the path. A session asks a new worker about
every data source and every plan: to import pandas and the pipeline is most of what that costs.
"""

import sys

if "pyspark.daemon" in sys.orig_argv:
    import gc

    import pandas  # noqa: F401
    import pyspark.worker  # noqa: F401
    from pyspark.sql.worker import (  # noqa: F401
        create_data_source,
        lookup_data_sources,
        plan_data_source_read,
    )

    import store.pipeline.source  # noqa: F401

    gc.freeze()
