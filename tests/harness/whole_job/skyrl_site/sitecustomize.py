"""Python imports this module when it starts, so every process of a job of SkyRL has the stand-ins."""

from harness.whole_job import skyrl_process

skyrl_process.install()
