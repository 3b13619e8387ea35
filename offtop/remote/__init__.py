"""Measures another machine over ssh, and shows it here."""
