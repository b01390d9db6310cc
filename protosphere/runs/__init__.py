"""Runs as a terminal shows them: stored_runs.py lists what a results folder holds, and deletes of it; display.py is the
line of a run that is on."""
