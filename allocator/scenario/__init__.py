"""What the user says: schema, loading with file and line, profiles, models."""
