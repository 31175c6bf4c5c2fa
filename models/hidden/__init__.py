"""Hidden layers as one operation on the GPU's matrix products, instead of layer by layer."""
