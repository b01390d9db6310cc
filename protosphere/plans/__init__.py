"""What a run is asked to do, checked before anything starts.

`assignments.py` parses settings, `run_config.py` merges them into a plan, together with defaults that depend on the
data (`fitting_defaults.py`), and `preflight.py` refuses what cannot work.
"""
