"""What the cells of a raw log say: labels and weights, texts of ids, lists and vectors."""
