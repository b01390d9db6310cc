"""Where both apps meet: a run over Flower's SuperLink or in this process, and what a run is asked to do."""
