"""What a run can have beside its rounds: each a file."""
