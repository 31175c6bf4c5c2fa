"""Append-only logs of messages: in files, in Redis Streams or in Kafka."""
