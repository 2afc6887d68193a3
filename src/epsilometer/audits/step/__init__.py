"""Does a training step do what was accounted for? Run it on neighbouring batches."""
