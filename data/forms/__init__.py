"""The forms of data: sources.py tells them apart, and each has a module."""
