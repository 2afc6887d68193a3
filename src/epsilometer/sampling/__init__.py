"""Draw batches, random streams and noise, and recognise the sampling of a loader."""
