"""Training runs that last: accumulation, averaging, checkpoints, several processes."""
