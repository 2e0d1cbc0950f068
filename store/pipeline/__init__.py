"""The data pipeline: jobs on Spark that archive, prove, compare and restore the history."""
