"""Play a log or a generated stream as messages of events, at a chosen rate."""
