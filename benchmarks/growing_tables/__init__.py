"""Parts of `tables.py`: timing of operations on ids, and the tables of other packages."""
