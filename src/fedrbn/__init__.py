"""Federated Robustness Propagation (FedRBN): robustness shared through batch-norm statistics."""
