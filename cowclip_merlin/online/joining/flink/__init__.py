"""The same join as a Flink SQL job, for streams that one process cannot read."""
