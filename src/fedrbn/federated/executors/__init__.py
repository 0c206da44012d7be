"""Where clients run: in this process or in worker processes."""
