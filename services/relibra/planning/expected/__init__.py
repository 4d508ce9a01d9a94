"""Planning for loads that are estimated instead of recorded.

`loads` estimates the load of a step from earlier steps or from the rollout. `replicas` chooses replicas that stay good
when the actual load differs from the estimate.
"""
