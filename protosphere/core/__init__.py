"""What everything else stands on: settings, errors, files, plug-ins, seeds, devices, text for people. It imports
nothing of ours."""
