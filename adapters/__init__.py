"""Adapters: downstream systems that look at the fencing token.

Each imports its own driver and nothing of the others.
"""
