"""Who holds which rows: assignment.py works it out once a machine, by the partition that a run names."""
