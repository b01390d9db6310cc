"""A trained client outside its run: predictions, exports."""
