"""What an experiment costs: multiply-accumulates, bytes and time."""
