"""The papers' mathematics as pure functions: no Flower, no files, no settings, no model."""
