"""Every table and figure of the paper as a file of settings, and what runs them."""
