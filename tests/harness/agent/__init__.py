"""Ranks of one node in processes of their own, and stand-ins for what an agent talks to."""
