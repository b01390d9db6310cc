"""The parts of the apps that `benchmarks.deployment` runs; it copies this folder into them."""
