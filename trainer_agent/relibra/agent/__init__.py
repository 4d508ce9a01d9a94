"""What lives inside a training process: fetches the step's plan and executes it without changing the mathematics.

In:   a built megatron-core model with its optimizer, and rank plans from the planner.
Out:  balanced MoE layers, realised loads reported back, weights under their logical names.
"""
