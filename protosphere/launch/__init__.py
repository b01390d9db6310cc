"""Starting a run: in this process, over a Flower of our own, on the nodes of a SuperLink or of a Ray cluster.

Before: `run_config.py` merges what is asked for to a plan, with what follows from the data (`fitting_defaults.py`), and
`preflight.py` refuses what cannot work.

In this process: `grid.py`.

Over Flower: `flower_run.py`, from the bundle of the app (`app_bundle.py`) to the outcome, over the `flwr` commands
(`connection.py`; why they do not get through: `reachability.py`) or a SuperLink of our own (`superlink.py`).
`processes.py` and `guardian.py` end all that was started. `ray_cluster.py` asks a cluster what it has.

After a run that was cut: `unfinished_run.py`.
"""
