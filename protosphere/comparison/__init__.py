"""Methods compared: trials of a table, run, kept in a folder, summed up and shown.

- spec.py reads a comparison from its file and narrows it as the command line says; variants.py makes methods of the
  values of settings that are varied.
- trials.py makes its trials, a run each with every setting resolved.
- folder.py keeps them; execution.py runs them, each in a process of its own or as a task of a Ray cluster.
- frame.py makes one frame of all trials, and of it means and differences, which paired.py takes seed by seed;
  tables.py, plots.py and report.py show them.
"""
