"""What `protosphere runs` shows: stored_runs.py lists what a results folder holds, and deletes of it."""
