"""What a planner accepts: the size, speed and number of requests, and what its machine has room for."""
