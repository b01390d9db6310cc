"""Runs started: in this process, over Flower, on real machines."""
