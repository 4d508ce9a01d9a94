"""Real training steps on CPU ranks, timed by a clock and compared with the simulation."""
