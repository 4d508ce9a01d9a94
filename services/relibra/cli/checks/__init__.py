"""What `relibra doctor` looks at: each module asks one thing (`examine`) and judges the answer in a pure function.

In:   addresses of services, programs and packages of this machine, a file of Megatron arguments.
Out:  findings: what was looked at, whether it is well, why, and what to do if not.
"""
