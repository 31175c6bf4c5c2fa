"""Read, describe and summarize prepared folders."""
