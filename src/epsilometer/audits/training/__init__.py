"""Can the ε of any training function be true? Run it again and again."""
