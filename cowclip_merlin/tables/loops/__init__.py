"""Building blocks of the compiled loops: how they are compiled, hashes, and the hash table."""
