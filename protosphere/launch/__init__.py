"""Starting a run: in this process, over a Flower of our own, on the nodes of a SuperLink or of a Ray cluster.

In this process: `grid.py`. Over Flower: `flower.py`, from the app's bundle to the outcome, over the `flwr` commands.
`processes.py` starts processes of which nothing outlives us. `ray_cluster.py` asks a cluster what it has.
"""
