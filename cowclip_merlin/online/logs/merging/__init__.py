"""Several logs as one."""
