"""Define the colors and styles of all figures."""
