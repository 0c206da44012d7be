"""What leaves a run: exported networks, model files, and models for new clients."""
