"""Physical laws, one concept a module, as plain functions of floats and arrays."""
