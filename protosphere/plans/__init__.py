"""What a run is asked to do, before anything is started.

`assignments.py` reads settings as they are given, `run_config.py` merges what is asked for to a plan, with what follows
from the data (`fitting_defaults.py`), and `preflight.py` refuses what cannot work.
"""
