"""Building blocks of the compiled loops: hashes, memory, and the hash table."""
