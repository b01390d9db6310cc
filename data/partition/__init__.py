"""The assignment of samples to clients; assignment.py computes it once per machine, by the run's partition."""
