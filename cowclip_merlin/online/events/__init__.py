"""Events of a log or a request: 64-bit ids and numbers, with nothing fitted to data."""
