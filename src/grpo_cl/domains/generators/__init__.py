"""Procedural tasks over the real databases."""
