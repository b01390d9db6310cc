"""The forms in which data lie: sources.py tells them apart, and each has a module."""
