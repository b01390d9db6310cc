"""Methods compared: cells of a table, run, kept in a folder, worked out and shown."""
