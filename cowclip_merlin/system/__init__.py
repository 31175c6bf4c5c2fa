"""The machine under the program: files, signals, hardware, versions."""
