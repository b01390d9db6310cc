"""Methods compared: trials of a table, run, kept in a folder, summed up and shown."""
