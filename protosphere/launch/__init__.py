"""Starting a run: in this process, over a Flower of our own, on the nodes of a SuperLink or of a Ray cluster.

Before: `run_config.py` merges what is asked for to a plan, with what follows from the data (`fitting_defaults.py`), and
`preflight.py` refuses what cannot work.

In this process: `grid.py`. Over Flower: `flower.py`, from the app's bundle to the outcome, over the `flwr` commands.
`processes.py` starts processes of which nothing outlives us. `ray_cluster.py` asks a cluster what it has.
"""
