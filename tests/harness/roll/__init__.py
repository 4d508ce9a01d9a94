"""ROLL's own workers and strategies on gloo ranks, plain and with the plug-in."""
