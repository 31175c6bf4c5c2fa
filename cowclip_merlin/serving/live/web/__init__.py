"""The HTTP interface of a server: requests, status, metrics and pages."""
