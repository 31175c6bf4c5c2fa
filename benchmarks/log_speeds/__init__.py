"""Parts of `message_logs.py`: what is measured on one log."""
