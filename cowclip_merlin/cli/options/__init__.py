"""Options that several commands share, and how commands are added to a parser."""
