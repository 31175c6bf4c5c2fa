"""Steps on batches of events, and the form in which they get them."""
