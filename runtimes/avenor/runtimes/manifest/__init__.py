"""Runs manifests: roles, dependencies, budgets, joins and stop rules, enforced."""
