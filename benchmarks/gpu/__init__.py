"""The project's operations on a GPU without TensorFlow: built, checked against NumPy, timed."""
