"""The figures of a report: gathered by Spark, bounded whatever was published, drawn as a page."""
