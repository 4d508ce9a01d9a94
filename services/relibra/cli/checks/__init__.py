"""The checks of `relibra doctor`: `examine` collects facts, and the pure function `judge` turns them into findings.

In:   addresses of services, programs and packages on this machine, a file of Megatron arguments.
Out:  findings: the subject, the result, the reason, and how to fix a problem.
"""
