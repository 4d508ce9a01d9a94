"""The ranks of one node in processes of their own, and stand-ins for the agent's planner."""
