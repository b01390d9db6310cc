"""Shared basics: settings, errors, files, plug-ins, seeds, devices, and text for messages. It imports no other package
of this project."""
