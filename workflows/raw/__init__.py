"""Read, check and split the rows of raw click logs, from text or parquet."""
