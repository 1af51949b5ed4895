"""Manifests: teams with roles, dependencies and budgets, as a runner enforces them. Pure: no I/O, no clock."""
