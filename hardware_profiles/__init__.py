"""Hardware, model, price and rate profiles: data only, read by allocator.scenario.profiles."""
