"""How a client turns batches into an update."""
