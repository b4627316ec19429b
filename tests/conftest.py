"""Shared test set-up: none yet; tests build what they need."""
