"""What a run leaves in its folder: lines of metrics, tables, prototypes, its origin and its summary."""
