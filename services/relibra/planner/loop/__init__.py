"""From pending steps to published plans: whose turn it is, the lease, and which old steps expire."""
