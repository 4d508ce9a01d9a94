"""The worker processes of the solver: they read a step, solve it, check the plan and encode it."""
