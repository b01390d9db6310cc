"""Reports on finished, interrupted and running runs."""
