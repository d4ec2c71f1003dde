"""Verbs for a model that was trained before."""
