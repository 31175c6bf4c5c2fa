"""The two demos, `make demo` and `cowclip online demo`, and how they measure a running stream."""
