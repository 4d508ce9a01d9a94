"""The folder from which Python imports `sitecustomize` in every process of a job of SkyRL."""
