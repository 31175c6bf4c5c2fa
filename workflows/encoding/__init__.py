"""Replace texts by numbers while a log is read, count them, and write the rows with ids."""
