"""Runs of any kind, beside each other: what `protosphere runs` and a report of several runs show.

- stored_runs.py lists what a results folder holds, and deletes of it.
- differences.py says in which settings runs differ, and whether the clients of one are better off.
- overlay.py lays the curves of runs over each other on one page.
"""
