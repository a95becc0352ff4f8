"""Fencing tokens that downstream systems enforce."""
