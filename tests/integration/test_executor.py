"""The SuperExec of ours over real processes: test_deployment.py, whose federation its tests share."""
