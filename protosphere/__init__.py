"""Protosphere: prototype-based federated learning on Flower."""
