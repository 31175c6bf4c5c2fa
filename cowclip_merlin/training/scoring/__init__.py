"""Score raw rows with a trained run."""
