"""Hidden layers: one operation on the GPU's matrix products, or layers with other activations."""
