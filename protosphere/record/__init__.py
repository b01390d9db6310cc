"""What a run leaves, in its folder.

A round: `replies.py` has what clients answered, `metrics_lines.py` makes the round's line of that, and `folder.py`
writes it, with every client's figures in a file beside (`client_tables.py`).

Beside the lines: `snapshots.py` keeps prototypes, `confusion.py` what clients take for what, `provenance.py` where the
run comes from. At the end `summary.py` makes the run's figures of its lines.
"""
