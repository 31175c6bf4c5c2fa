"""Training planned runs: data variants, one run after another, and how long they will take."""
