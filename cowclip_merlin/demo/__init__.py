"""The two demos, `make demo` and `cowclip online demo`."""
