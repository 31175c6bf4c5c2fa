"""Where the first weights of a run come from."""
