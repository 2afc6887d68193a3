"""Can the ε of any training function be true? Run it many times."""
