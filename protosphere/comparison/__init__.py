"""Methods compared: trials of a table, run, kept in a folder, summed up and shown.

- plan.py reads a comparison from its file, selection.py narrows it as the command line says, and sweep.py makes methods
  of the values of a setting that are tried out.
- trials.py makes its cells, a run each with every setting resolved.
- folder.py keeps them; engine.py runs them on the share of the machine that
  resources.py works out: jobs.py as processes, which warm.py forks, ray_tasks.py as tasks of a Ray cluster.
- figures.py makes one frame of all finished cells, and paired.py tells methods apart seed by seed; tables.py,
  pictures.py and report.py show them.
"""
