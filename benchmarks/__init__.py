"""Speed and memory of the product, measured in one run; see `python -m benchmarks`."""
