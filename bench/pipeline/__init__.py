"""The jobs of `storenode pipeline` against what one machine does without Spark."""
