"""Starts a run: in this process, in Flower's simulation, on the nodes of a SuperLink, or on a Ray cluster.

`grid.py` runs in this process. `flower.py` runs over Flower with the `flwr` commands, from the app's bundle to the
outcome. `processes.py` starts processes that never outlive us. `ray_cluster.py` asks a cluster for its nodes.
"""
