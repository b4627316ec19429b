"""Solvers of the planning problem behind one small interface."""
