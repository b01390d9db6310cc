"""Where the figures of docs/results.md and the other pages come from; each prints its own."""
