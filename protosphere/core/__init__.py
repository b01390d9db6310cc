"""What both ends of a run agree on: settings, payloads and messages, the roster, the record, seeds."""
