"""A scenario made solver-free: resolved numbers, the domain of decisions, named limits."""
