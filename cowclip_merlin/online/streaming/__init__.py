"""Online training on a stream: read batches, train, sync servers, write snapshots."""
