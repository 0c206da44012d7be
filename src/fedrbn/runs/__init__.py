"""Run directories: train, resume, load, watch and compare runs."""
