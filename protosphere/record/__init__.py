"""What a run leaves: its folder, its lines and figures, snapshots of prototypes, its status, live sinks."""
