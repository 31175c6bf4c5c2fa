"""What a run with several targets computes, names and writes for each of them."""
