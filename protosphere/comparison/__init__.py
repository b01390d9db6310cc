"""Comparisons of methods: spec.py reads a comparison, variants.py and trials.py expand it to trials, execution.py runs
them in the folder of folder.py, frame.py collects their numbers, and tables.py, plots.py and report.py show them."""
