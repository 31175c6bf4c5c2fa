"""Append-only message logs: in files, in Redis Streams or in Kafka."""
