"""Parts of `triton_serving.py`: an exported model, Triton's server, and a client."""
