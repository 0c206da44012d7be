"""The method: clients (Algorithms 1 and 3), server (Algorithm 2), propagation (Eqs. 3-4), and the seam between them."""
