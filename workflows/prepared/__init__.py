"""Prepared folders: read, describe and report on them."""
