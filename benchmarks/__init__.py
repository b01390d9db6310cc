"""The sources of the figures in docs/results.md and other pages; each prints its own."""
