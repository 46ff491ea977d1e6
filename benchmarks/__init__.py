"""Measurements and the bench they run on; part of a checkout, never installed."""
