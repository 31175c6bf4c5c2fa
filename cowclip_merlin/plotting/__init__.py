"""Colors and styles that every figure uses."""
