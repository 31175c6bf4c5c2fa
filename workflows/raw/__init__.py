"""Raw click logs: read, check and divide lines of text or parquet."""
