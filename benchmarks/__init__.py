"""Where the figures of the README and docs/results.md come from; each prints its own."""
