"""What machines do in a microsecond, and what the cells of a job cost on them.

`hardware` has the peaks of GPUs and links, `dispatcher` the share of them that sending tokens reaches, and `constants`
all that is uncertain, each as a `range` with its sources. `job_cost` makes the prices that a job registers of them.
Trainers import these modules, so they need no compiled code.
"""
