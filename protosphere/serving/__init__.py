"""Trained clients outside their run: predictions and exports."""
