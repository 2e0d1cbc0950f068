"""The report on a history: figures by Spark SQL, drawn as one HTML page."""
