"""How the scores of a run steer it: its learning rates, its end, and the weights it serves."""
