"""The update of tables by a Keras optimizer."""
