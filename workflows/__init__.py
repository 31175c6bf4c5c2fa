"""Raw click logs to ids, counts and parquet, with NVTabular."""
